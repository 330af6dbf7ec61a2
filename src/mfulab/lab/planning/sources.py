"""Finds the source code and data files that a measurement depends on, by parsing code and never by
importing it. An edited kernel thus repeats only its own runs. Definitions that the measurement
reaches by name count, and statements with an effect on import. Docstrings, comments, descriptions
of fields and error messages do not count. Nor do the fields of configs: their values are part of
each run's config (`identity`), so that a new key with a default repeats nothing. Any other change
of a statement counts, such as a renamed local variable."""

import ast
import hashlib
import importlib.machinery
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import platformdirs

from mfulab.core.errors import ConfigurationError, unknown
from mfulab.core.files import UnreadableError, read_json, read_text, write_text
from mfulab.core.said import Said, of_source
from mfulab.device import OF_GPUS, is_gpu, kind_of
from mfulab.device.vendors import makers
from mfulab.lab.planning.store import holds, write_if_changed

PACKAGE = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)
Sources = Mapping[Path, str]  # digest of each file's relevant statements
Node = tuple[str, str]  # a module, and a name in it
ALL = "*"  # in place of a name: every statement of the module
IMPORTING = ""  # in place of a name: only the statements that importing the module needs
DOTTED = re.compile(r"\w+(\.[\w*]+)+")
WORDS = ("mfulab.core.errors",)  # modules that do not count: messages change no measured value
COLUMNS = ("column", "counter_column", "json_column")  # functions that declare a column of a row
# Modules whose use of the catalogues does not count: rows hold keys of sentences, not their words.
SENTENCES = ("mfulab.core.said", "mfulab.mfu.explain")
LANGUAGE = ["core", "language"]  # in parts, as the dotted name in a string would count as a use
CONFIGS = ("Closed", "Config")  # suffixes of the names of config classes
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)


def run_sources(step: str, target: str | None, hardware: str = "") -> Sources:
    """Files that a run of `step` with a model or kernel `target` depends on. Modules that
    `hardware` does not need are left out: those of GPUs for a CPU, those of other vendors for a
    GPU."""
    roots = [(f"mfulab.measurements.{step}.measure", "measure")]
    if target:
        module = locate(target)
        roots.append((module, target.removeprefix(f"{module}.").split(".")[0]))
    without: tuple[str, ...] = WORDS
    if hardware and not is_gpu(kind_of(hardware)):
        without += OF_GPUS
    return _reached(tuple(roots), without + _of_other_vendors(hardware))


def _of_other_vendors(hardware: str) -> tuple[str, ...]:
    """Modules of all vendors but the one whose slug `hardware` is; none if it is nobody's."""
    modules = {type(vendor).__module__: vendor for vendor in makers()}
    own = {name for name, vendor in modules.items() if re.match(vendor.SLUG, hardware)}
    return tuple(sorted(modules.keys() - own)) if own else ()


def closure(*modules: str) -> Sequence[Path]:
    """Files that any of these modules depends on."""
    return list(_reached(tuple((module, ALL) for module in modules)))


@cache
def _reached(roots: tuple[Node, ...], without: tuple[str, ...] = ()) -> Sources:
    """Files that `roots` depend on, with their digests. Results are cached in the user's cache
    folder for each version of the package."""
    key = hashlib.sha256(repr((roots, without)).encode()).hexdigest()
    cached = platformdirs.user_cache_path(PACKAGE.name) / f"sources/{key[:16]}.json"
    with suppress(FileNotFoundError, UnreadableError, KeyError):
        return {PACKAGE / file: digest for file, digest in read_json(cached)[_version()].items()}
    data, statements = _walk(roots, without)
    contents = {file: file.read_bytes() for file in data}
    for module, indices in statements.items():
        texts = filter(None, map(module.text, sorted(indices)))
        contents[module.path] = "\n".join(texts).encode()
    sources = {file: hashlib.sha256(contents[file]).hexdigest()[:16] for file in sorted(contents)}
    # ValueError: a file outside the package may change, so that the result is not cached.
    # ConfigurationError: the cache folder cannot be written.
    with suppress(ValueError, ConfigurationError):
        relative = {str(file.relative_to(PACKAGE)): digest for file, digest in sources.items()}
        write_text(cached, json.dumps({_version(): relative}))
    return sources


@cache
def _version() -> str:
    """Digest of all files of the package and of Python's version, which affects how statements are
    parsed."""
    digest = hashlib.sha256(sys.version.encode())
    for file in sorted(PACKAGE.rglob("*.*")):
        if file.suffix != ".pyc" and file.is_file():
            digest.update(f"{file.relative_to(PACKAGE)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _walk(
    roots: Iterable[Node], without: tuple[str, ...] = ()
) -> tuple[set[Path], dict["_Module", set[int]]]:
    """Data files, and the indices of each module's statements, that `roots` reach. Modules whose
    names begin with one of `without` are skipped."""
    data = set[Path]()
    statements = dict["_Module", set[int]]()
    seen = set[Node]()
    waiting = set(roots)
    while waiting:
        node = waiting.pop()
        seen.add(node)
        module_name, name = node
        if module_name.startswith(without) or not _is_local(module_name):
            continue
        path = _file(module_name)
        if path is None:
            continue
        module = _module(module_name, path)
        indices, used = module.definitions(name)
        reached = statements.setdefault(module, set())
        for index in indices - reached:
            nodes, files, _ = module.read(index)
            used |= nodes
            data |= files
        reached |= indices
        if module_name in SENTENCES:
            used = {other for other in used if other[0].split(".")[1:3] != LANGUAGE}
        waiting |= used - seen
    unread = list(data)
    while unread:
        file = unread.pop()
        names = INCLUDE.findall(file.read_text(encoding="utf-8", errors="ignore"))
        included = _data(file.parent, names) - data
        data |= included
        unread += included
    return data, statements


def digests(files: Sources) -> str:
    """A line per file: its digest, and its path, relative to the package's parent or the current
    folder if it is inside."""
    roots = (PACKAGE.parent, Path.cwd())
    lines = []
    for file, digest in files.items():
        relative = [file.relative_to(root) for root in roots if file.is_relative_to(root)]
        lines.append(f"{digest}  {[*relative, file][0]}\n")
    return "".join(lines)


def write_digests(path: Path, files: Sources) -> None:
    """Writes the digests of files to `path` if one changed, and sets the time of `path` to that of
    the newest file."""
    if write_if_changed(path, digests(files)):
        newest = max(file.stat().st_mtime_ns for file in files)
        os.utime(path, ns=(newest, newest))


def changed_at(path: Path, files: Sources) -> float:
    """Time of the last relevant change: of `path` if it holds these digests, else of the newest
    file."""
    if holds(path, digests(files)):
        return path.stat().st_mtime
    return max(file.stat().st_mtime for file in files)


@dataclass
class _Used:
    """Names in a statement: dotted names, strings, local imports, and modules that patterns in
    f-strings match."""

    dotted: set[tuple[str, ...]] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    imports: dict[str, Node] = field(default_factory=dict)
    modules: set[Node] = field(default_factory=set)


class _Module:
    """A module's statements, by index. Imports are not statements here; they are aliases, each with
    the node that it means."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path, self.is_shipped = name, path, path.is_relative_to(PACKAGE)
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.aliases: dict[str, Node] = {}
        self.imported: set[Node] = set()  # nodes that importing this module imports too
        self.statements: list[ast.stmt] = []
        self.bound: dict[str, set[int]] = {}  # indices of the statements that bind a name
        self.read, self.text = cache(self._read), cache(self._text)
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError as error:
            location = of_source(f"{path}:{error.lineno}", f"{error.msg}.")
            raise ConfigurationError(location) from error
        for statement in tree.body:
            if not isinstance(statement, DEFINITIONS):
                self._import(statement)
            if not isinstance(statement, IMPORTS) and not _is_text(statement):
                for bound in _bound(statement):
                    self.bound.setdefault(bound, set()).add(len(self.statements))
                self.statements.append(statement)
        self.effects = set[int]()
        for index, statement in enumerate(self.statements):
            if self._has_effect(statement):
                self.effects.add(index)
        # Last, since what does not count may bind names and have effects too.
        self.configs = [_configs(_fields(statement)) for statement in self.statements]
        for statement in self.statements:
            _strip(statement)

    def _import(self, statement: ast.stmt) -> None:
        """Stores the names that a statement imports, and the modules that are imported with this
        one."""
        for node in ast.walk(statement):
            if not isinstance(node, IMPORTS):
                continue
            aliases = self._imports(node)
            self.aliases |= aliases
            if _runs(statement):
                self.imported |= {(module, IMPORTING) for module, _ in aliases.values()}
        if ALL in self.aliases:
            self.imported.add(self.aliases[ALL])

    def definitions(self, name: str) -> tuple[set[int], set[Node]]:
        """Indices of the statements that define a name or have an effect on import, and the nodes
        of other modules that these need."""
        if name == ALL:  # a module that is imported whole says at each use which name it uses
            aliased = {node for node in self.aliases.values() if node[1] != ALL}
        else:
            aliased = {self.aliases[name]} if name in self.aliases else set()
        is_known = name == IMPORTING or name in self.bound or bool(aliased)
        indices = set(range(len(self.statements)))
        if self.is_shipped and name != ALL and is_known:
            indices = self.effects | self.bound.get(name, set())
        return indices, self.imported | aliased

    def _text(self, index: int) -> str:
        """The relevant part of a statement as text. Slow: it takes as long as everything else
        together."""
        statement = self.statements[index]
        if isinstance(statement, ast.ClassDef) and not statement.body:
            return ""  # a config without methods
        uses = self.read(index)[2]
        return "\n".join([ast.dump(statement), *uses])

    def _read(self, index: int) -> tuple[set[Node], set[Path], list[str]]:
        """Nodes, data files and resolved names that a statement uses."""
        used = self._used(self.statements[index])
        aliases = self.aliases | used.imports
        resolved = {names: _resolve(names, aliases) for names in used.dotted}
        nodes = used.modules | {node for node in resolved.values() if node}
        for names in used.dotted | {(string,) for string in used.strings}:
            if not resolved.get(names) and names[0] in self.bound:
                nodes.add((self.name, names[0]))
        for names in self.configs[index]:
            nodes.add(_resolve(names, aliases) or (self.name, names[0]))
        if used.dotted & {("globals",), ("eval",), ("exec",)}:
            nodes.add((self.name, ALL))
        for module, _ in used.imports.values():
            nodes.add((module, IMPORTING))
        for string in used.strings:
            nodes |= _modules_called(string)
        uses = []
        for names, node in resolved.items():
            if node:
                uses.append(f"{'.'.join(names)} is {'.'.join(node)}")
        return nodes, _data(self.path.parent, used.strings), sorted(uses)

    def _used(self, statement: ast.stmt) -> _Used:
        """Names that a statement uses."""
        used = _Used()
        waiting: list[ast.AST] = [statement]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Name | ast.Attribute):
                root, names = _dotted(node)
                used.dotted.add(names)
                if root:
                    waiting.append(root)
            elif isinstance(node, ast.Constant):
                if isinstance(node.value, str):
                    used.strings.add(node.value)
            elif isinstance(node, IMPORTS):
                used.imports |= self._imports(node)
            else:
                if isinstance(node, ast.JoinedStr):
                    used.modules |= _modules_called(_pattern(node))
                waiting += ast.iter_child_nodes(node)
        return used

    def _imports(self, node: ast.Import | ast.ImportFrom) -> dict[str, Node]:
        """Names that an import binds, each with the node that it means. `import a.b` is stored
        under its dotted name."""
        if isinstance(node, ast.Import):
            return {alias.asname or alias.name: (alias.name, ALL) for alias in node.names}
        parts = []
        if node.level:
            package = self.package.split(".")
            parts = package[: len(package) - node.level + 1]
        if node.module:
            parts.append(node.module)
        base = ".".join(parts)
        bound = dict[str, Node]()
        for alias in node.names:
            is_module = _is_ours(base, alias.name)
            meaning = (f"{base}.{alias.name}", ALL) if is_module else (base, alias.name)
            bound[alias.asname or alias.name] = meaning
        return bound

    def _has_effect(self, statement: ast.stmt) -> bool:
        """False if importing the statement does nothing but bind its names."""
        if isinstance(statement, DEFINITIONS):
            return any(map(self._calls_ours, statement.decorator_list))
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            return _runs(statement)
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            for name in getattr(target, "elts", None) or [target]:
                if not isinstance(name, ast.Name):
                    return True
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and self._calls_ours(node.func):
                is_class = _dotted(node.func)[1][-1][:1].isupper()
                if not is_class:
                    return True
        return False

    def _calls_ours(self, called: ast.expr) -> bool:
        """True if the called function is defined in this project or by the user, not by a library
        or by Python."""
        root, names = _dotted(called)
        while isinstance(root, ast.Call):
            root, names = _dotted(root.func)
        node = _resolve(names, self.aliases)
        if node:
            return _is_local(node[0])
        return names[0] in self.bound


_module = cache(_Module)


def _strip(statement: ast.stmt) -> None:
    """Removes the parts of a statement that do not count: fields of configs, docstrings, and
    descriptions of fields and columns."""
    if isinstance(statement, ast.ClassDef):
        fields = _fields(statement)
        statement.body = [node for node in statement.body if node not in fields]
    for node in ast.walk(statement):
        _remove_descriptions(node)


def _remove_descriptions(node: ast.AST) -> None:
    """Removes the docstring of a definition, and the description of a field or column."""
    if isinstance(node, DEFINITIONS):
        node.body = [child for child in node.body if not _is_text(child)]
    elif isinstance(node, ast.Call):
        called = _dotted(node.func)[1][-1]
        if called == "Field":
            node.keywords = [word for word in node.keywords if word.arg != "description"]
        elif called in COLUMNS:  # the kind of column affects tables, not measurements
            node.func = ast.Name("column", ast.Load())
            node.args = []


def _pattern(node: ast.JoinedStr) -> str:
    """An f-string with `*` for each value."""
    parts = []
    for part in node.values:
        parts.append(str(part.value) if isinstance(part, ast.Constant) else ALL)
    return "".join(parts)


def _runs(statement: ast.stmt) -> bool:
    """False for statements that an import does not run: strings, and blocks for type checkers or
    for a module run as a script."""
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) not in ("TYPE_CHECKING", "__name__ == '__main__'")
    return not _is_text(statement)


def _is_text(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _fields(statement: ast.stmt) -> list[ast.stmt]:
    """Fields of a config's class; empty for other statements."""
    if not isinstance(statement, ast.ClassDef) or not any(map(_is_config, statement.bases)):
        return []
    return [node for node in statement.body if _is_field(node)]


def _configs(fields: Iterable[ast.stmt]) -> set[tuple[str, ...]]:
    """Names of the config classes in fields, whose methods count though the fields do not."""
    names = set[tuple[str, ...]]()
    for field_ in fields:
        for node in ast.walk(field_):
            if isinstance(node, ast.Name | ast.Attribute) and _is_config(node):
                names.add(_dotted(node)[1])
    return names


def _is_config(name: ast.expr) -> bool:
    """True if an expression names a config class."""
    return _dotted(name)[1][-1].endswith(CONFIGS)


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement defines or assigns."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    names = set[str]()
    for node in ast.walk(statement):
        if isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _dotted(node: ast.expr) -> tuple[ast.expr | None, tuple[str, ...]]:
    """The names of a dotted expression, and the expression that it begins with if that is not a
    name. `f().a` gives (the call `f()`, ("", "a"))."""
    if isinstance(node, ast.Attribute):
        root, names = _dotted(node.value)
        return root, (*names, node.attr)
    if isinstance(node, ast.Name):
        return (None, (node.id,))
    return (node, ("",))


def _resolve(names: Sequence[str], aliases: Mapping[str, Node]) -> Node | None:
    """The node that a dotted name means; None if it does not begin with an imported name."""
    for length in range(len(names), 0, -1):
        module, name = aliases.get(".".join(names[:length]), ("", ""))
        rest = list(names[length:])
        while name == ALL and rest and _is_ours(module, rest[0]):
            module = f"{module}.{rest.pop(0)}"
        if module and name == ALL and rest:
            return module, rest[0]
        if module:
            return module, name
    return None


@cache
def _modules_called(text: str) -> frozenset[Node]:
    """Modules of the package that a string names, such as `mfulab.kernels.*`; or the name in one of
    them that a dotted path ends with."""
    if not text.startswith(f"{PACKAGE.name}.") or not DOTTED.fullmatch(text):
        return frozenset()
    pattern = re.compile(re.escape(text).replace(r"\*", r"\w+"))
    modules = set[str]()
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        modules.add(name.removesuffix(".__init__"))
    matching = frozenset((name, ALL) for name in modules if pattern.fullmatch(name))
    parent, _, last = text.rpartition(".")
    if not matching and parent in modules and _holds(parent, last):
        return frozenset({(parent, last)})
    return matching


def _holds(module: str, name: str) -> bool:
    """True if a module's text contains a name. A group of entry points is named like a module
    too."""
    path = _file(module)
    return path is not None and re.search(rf"\b{name}\b", read_text(path)) is not None


def _data(folder: Path, names: Iterable[str]) -> set[Path]:
    """The package's data files below `folder`, at any depth, that one of `names` matches, such as
    `x.csv` or `y/*.yaml`."""
    found = set[Path]()
    for name in names:
        ending = name.rpartition(".")[2]
        for file in _data_files().get(ending, ()):
            if file.is_relative_to(folder) and file.match(name):
                found.add(file)
    return found


@cache
def _data_files() -> dict[str, list[Path]]:
    """The package's data files, grouped by ending without the dot."""
    by_ending: dict[str, list[Path]] = {}
    for path in PACKAGE.rglob("*.*"):
        if path.suffix not in (".py", ".pyc", ".typed") and path.is_file():
            by_ending.setdefault(path.suffix[1:], []).append(path)
    return by_ending


def _is_ours(package: str, name: str) -> bool:
    """True for a module in a local package. Libraries are not searched, as not every machine has
    them installed."""
    return _is_local(package) and _file(f"{package}.{name}") is not None


@cache
def _is_local(module: str) -> bool:
    """True if a module belongs to this project or to the user's own files, not to an installed
    library."""
    top = module.split(".")[0]
    path = _file(top)
    if path is None:
        return False
    if path.is_relative_to(PACKAGE):
        return True
    is_installed = bool({"site-packages", "dist-packages"}.intersection(path.parts))
    return not is_installed and top not in sys.stdlib_module_names


@cache
def _file(module: str) -> Path | None:
    """Python file of a module, found without importing it or its parents; None if it has none."""
    search: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    for part in module.split("."):
        spec = None
        if search is not None:
            spec = importlib.machinery.PathFinder.find_spec(part, search)
        if spec is None:
            return None
        search = spec.submodule_search_locations
        path = spec.origin
    if path and path.endswith(".py"):
        return Path(path).resolve()
    return None


@cache
def locate(target: str) -> str:
    """Module of a `_target_`, found in the source text. Raises ConfigurationError if the module, or
    the name in it, does not exist."""
    name, _, wanted = target.rpartition(".")
    while name and not _file(name):
        name, _, wanted = name.rpartition(".")
    path = _file(name) if name else None
    if path is None:
        missing = target.rpartition(".")[0] or target
        raise ConfigurationError(Said("no_such_module", target=target, module=missing))
    module = _module(name, path)
    names = {*module.bound, *module.aliases}
    is_own_package = path.name == "__init__.py" and not module.is_shipped
    is_dynamic = is_own_package or bool({"__getattr__", ALL} & names)
    if wanted not in names and not is_dynamic:
        raise unknown(f"_target_={target}: name in {name}", wanted, names, str(path))
    return name
