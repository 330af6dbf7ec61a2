"""The sources of a measurement, found by reading code and names of data files, never by importing:
an edited kernel re-runs its own runs alone. What a measurement reaches by name counts, and
statements with an effect on import; docstrings, comments, descriptions of fields and errors do not.
Nor do the fields of configs: their values are part of each run's own config (`identity`), so that a
new key with a default re-runs nothing. A renamed local variable, or a line put otherwise, counts as
another statement."""

import ast
import hashlib
import importlib.machinery
import itertools
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
from mfulab.lab.planning.store import holds, write_if_changed

PACKAGE = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)
Sources = Mapping[Path, str]  # each file, with the digest of what counts of it
Node = tuple[str, str]  # a module, and a name in it
ALL = "*"
IMPORTING = ""  # in place of a name: every statement of the module; those that importing it needs
DOTTED = re.compile(r"\w+(\.[\w*]+)+")
WORDS = ("mfulab.core.errors",)  # what a message says changes no row that was measured
COLUMNS = ("column", "counter_column", "json_column")  # functions that declare a value of a row
# Rows hold a sentence's key, and no explanation's lines: a language decides nothing that only names
# them.
TOLD = ("mfulab.core.said", "mfulab.mfu.explain")
LANGUAGE = ["core", "language"]  # in parts: a text of its name would be a use of it
CONFIGS = ("Closed", "Config")  # how names of configs' classes end
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)


def run_sources(step: str, target: str | None, hardware: str = "") -> Sources:
    """Files that a run of `step` with a model or kernel `target` depends on; a CPU's on nothing for
    GPUs alone."""
    roots = [(f"mfulab.measurements.{step}.measure", "measure")]
    if target:
        module = locate(target)
        roots.append((module, target.removeprefix(f"{module}.").split(".")[0]))
    return _reached(
        tuple(roots), (*WORDS, *(OF_GPUS if hardware and not is_gpu(kind_of(hardware)) else ()))
    )


def closure(*modules: str) -> Sequence[Path]:
    """Files that all of these modules depend on."""
    return list(_reached(tuple((module, ALL) for module in modules)))


@cache
def _reached(roots: tuple[Node, ...], without: tuple[str, ...] = ()) -> Sources:
    """Walks the code, or returns the result that the user's cache folder holds for this text of the
    package."""
    asked = hashlib.sha256(repr((roots, without)).encode()).hexdigest()
    memory = platformdirs.user_cache_path(PACKAGE.name) / f"sources/{asked[:16]}.json"
    with suppress(FileNotFoundError, UnreadableError, KeyError):
        return {PACKAGE / file: digest for file, digest in read_json(memory)[_version()].items()}
    data, statements = _walk(roots, without)
    read = {file: file.read_bytes() for file in data}
    for module, places in statements.items():
        texts = filter(None, map(module.text, sorted(places)))
        read[module.path] = "\n".join(texts).encode()
    sources = {file: hashlib.sha256(read[file]).hexdigest()[:16] for file in sorted(read)}
    with suppress(
        ValueError, ConfigurationError
    ):  # of a file outside, which may change; of caches that are read-only
        kept = {str(file.relative_to(PACKAGE)): digest for file, digest in sources.items()}
        write_text(memory, json.dumps({_version(): kept}))
    return sources


@cache
def _version() -> str:
    """Digest of all that the package holds, and of Python's version, which decides how a statement
    reads."""
    held = hashlib.sha256(sys.version.encode())
    for file in sorted(
        path for path in PACKAGE.rglob("*.*") if path.suffix != ".pyc" and path.is_file()
    ):
        held.update(f"{file.relative_to(PACKAGE)}\n".encode() + file.read_bytes())
    return held.hexdigest()


def _walk(
    roots: Iterable[Node], without: tuple[str, ...] = ()
) -> tuple[set[Path], dict["_Module", set[int]]]:
    """Data files, and of each module the places of statements, that `roots` reach outside of
    modules `without`."""
    data = set[Path]()
    statements = dict["_Module", set[int]]()
    seen = set[Node]()
    waiting = set(roots)
    while waiting:
        seen.add(node := waiting.pop())
        if (
            node[0].startswith(without)
            or not _is_local(node[0])
            or (path := _file(node[0])) is None
        ):
            continue
        module = _module(node[0], path)
        places, beyond = module.meant(node[1])
        read = statements.setdefault(module, set())
        for place in places - read:
            nodes, files, _ = module.read(place)
            beyond |= nodes
            data |= files
        read |= places
        if node[0] in TOLD:
            beyond = {each for each in beyond if each[0].split(".")[1:3] != LANGUAGE}
        waiting |= beyond - seen
    unread = list(data)
    while unread:
        file = unread.pop()
        included = (
            _data(file.parent, INCLUDE.findall(file.read_text(encoding="utf-8", errors="ignore")))
            - data
        )
        data |= included
        unread += included
    return data, statements


def digests(files: Sources) -> str:
    """A line for each file with its digest."""
    roots = (PACKAGE.parent, Path.cwd())
    shorter = {
        file: [file.relative_to(root) for root in roots if file.is_relative_to(root)]
        for file in files
    }
    return "".join(f"{digest}  {[*shorter[file], file][0]}\n" for file, digest in files.items())


def write_digests(path: Path, files: Sources) -> None:
    """Writes the digest of each file to `path` where one changed; `path` is then as old as the
    newest of them."""
    if write_if_changed(path, digests(files)):
        newest = max(file.stat().st_mtime_ns for file in files)
        os.utime(path, ns=(newest, newest))


def changed_at(path: Path, files: Sources) -> float:
    """Time of the last change that counts: of `path` where it holds these digests, else of the
    newest file."""
    return max(file.stat().st_mtime for file in ([path] if holds(path, digests(files)) else files))


@dataclass
class _Used:
    """Names in a statement: dotted names, texts, what it imports inside, and modules by their
    patterns."""

    dotted: set[tuple[str, ...]] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    imports: dict[str, Node] = field(default_factory=dict)
    modules: set[Node] = field(default_factory=set)


class _Module:
    """A module's statements, each known by its place; imports are no statements here, but names and
    what they mean."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path, self.is_shipped = name, path, path.is_relative_to(PACKAGE)
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.aliases: dict[str, Node] = {}
        self.imported: set[Node] = set()  # what is imported with this module
        self.statements: list[ast.stmt] = []
        self.bound: dict[str, set[int]] = {}  # places of what binds a name
        self.read, self.text = cache(self._read), cache(self._text)
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError as error:
            place = of_source(f"{path}:{error.lineno}", f"{error.msg}.")
            raise ConfigurationError(place) from error
        for statement in tree.body:
            if not isinstance(statement, DEFINITIONS):
                self._import(statement)
            if not isinstance(statement, IMPORTS) and not _is_text(statement):
                for bound in _bound(statement):
                    self.bound.setdefault(bound, set()).add(len(self.statements))
                self.statements.append(statement)
        self.effects = {
            index for index, statement in enumerate(self.statements) if self._has_effect(statement)
        }

    def _import(self, statement: ast.stmt) -> None:
        """Notes the names that a statement imports, and the modules that run with this one."""
        for node in ast.walk(statement):
            if not isinstance(node, IMPORTS):
                continue
            aliases = self._imports(node)
            self.aliases |= aliases
            if _runs(statement):
                self.imported |= {(module, IMPORTING) for module, _ in aliases.values()}
        if ALL in self.aliases:
            self.imported.add(self.aliases[ALL])

    def meant(self, name: str) -> tuple[set[int], set[Node]]:
        """Places of what a name means and of what happens on import, and nodes of other modules
        that these bring."""
        if name == ALL:  # of a module that was imported whole, the statements say what they use
            named = {node for node in self.aliases.values() if node[1] != ALL}
        else:
            named = {self.aliases[name]} if name in self.aliases else set()
        is_known = name == IMPORTING or name in self.bound or bool(named)
        is_part = self.is_shipped and name != ALL and is_known
        places = (
            self.effects | self.bound.get(name, set())
            if is_part
            else set(range(len(self.statements)))
        )
        return places, self.imported | named

    def _text(self, index: int) -> str:
        """The part of the statement at a place that counts, as text; making it takes as long as all
        else."""
        uses = self.read(index)[2]  # first: it takes out what does not count
        statement = self.statements[index]
        if isinstance(statement, ast.ClassDef) and not statement.body:
            return ""  # a config of fields alone
        return "\n".join([ast.dump(statement), *uses])

    def _read(self, index: int) -> tuple[set[Node], set[Path], list[str]]:
        """Definitions, data files and resolved names that a statement uses; docstrings and such are
        removed from it."""
        statement = self.statements[index]
        fields = _without_fields(statement)
        used = self._used(statement)
        aliases = self.aliases | used.imports
        meant = {names: _meant(names, aliases) for names in used.dotted}
        nodes = used.modules | {node for node in meant.values() if node}
        for names in used.dotted | {(string,) for string in used.strings}:
            if not meant.get(names) and names[0] in self.bound:
                nodes.add((self.name, names[0]))
        for names in fields:
            nodes.add(_meant(names, aliases) or (self.name, names[0]))
        if used.dotted & {("globals",), ("eval",), ("exec",)}:
            nodes.add((self.name, ALL))
        for module, _ in used.imports.values():
            nodes.add((module, IMPORTING))
        for string in used.strings:
            nodes |= _modules_called(string)
        uses = [f"{'.'.join(names)} is {'.'.join(node)}" for names, node in meant.items() if node]
        return nodes, _data(self.path.parent, used.strings), sorted(uses)

    def _used(self, statement: ast.stmt) -> _Used:
        """Names in a statement; takes out of it what does not count."""
        used = _Used()
        waiting: list[ast.AST] = [statement]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Name | ast.Attribute):
                root, names = _parts(node)
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
                _take_out_words(node)
                waiting += ast.iter_child_nodes(node)
        return used

    def _imports(self, node: ast.Import | ast.ImportFrom) -> dict[str, Node]:
        """The names that an import binds, each with what it means; `import a.b` is kept by its
        whole name."""
        if isinstance(node, ast.Import):
            return {alias.asname or alias.name: (alias.name, ALL) for alias in node.names}
        parents = []
        if node.level:
            parents = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
        base = ".".join([*parents, *([node.module] if node.module else [])])
        named = {alias.asname or alias.name: alias.name for alias in node.names}
        return {
            key: (f"{base}.{name}", ALL) if _is_ours(base, name) else (base, name)
            for key, name in named.items()
        }

    def _has_effect(self, statement: ast.stmt) -> bool:
        """True unless all that importing the statement does is to bind its names."""
        if isinstance(statement, DEFINITIONS):
            return any(map(self._calls_ours, statement.decorator_list))
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            return _runs(statement)
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = [name for target in targets for name in (getattr(target, "elts", None) or [target])]
        calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
        makes = any(
            self._calls_ours(call) and not _parts(call)[1][-1][:1].isupper() for call in calls
        )
        return makes or not all(isinstance(name, ast.Name) for name in names)

    def _calls_ours(self, called: ast.expr) -> bool:
        """True if what is called is defined in this project, and not by a library or by Python."""
        root, names = _parts(called)
        while isinstance(root, ast.Call):
            root, names = _parts(root.func)
        meant = _meant(names, self.aliases)
        if meant:
            return _is_local(meant[0])
        return names[0] in self.bound


_module = cache(_Module)


def _take_out_words(node: ast.AST) -> None:
    """Removes docstrings of a definition, and the description of a field or column."""
    if isinstance(node, DEFINITIONS):
        node.body = [child for child in node.body if not _is_text(child)]
    elif isinstance(node, ast.Call):
        called = _parts(node.func)[1][-1]
        if called == "Field":
            node.keywords = [word for word in node.keywords if word.arg != "description"]
        elif called in COLUMNS:  # how a table holds a value changes no measurement
            node.func = ast.Name("column", ast.Load())
            node.args = []


def _pattern(node: ast.JoinedStr) -> str:
    """An f-string with `*` for each value."""
    parts = []
    for part in node.values:
        parts.append(str(part.value) if isinstance(part, ast.Constant) else ALL)
    return "".join(parts)


def _runs(statement: ast.stmt) -> bool:
    """False for what an import passes over: texts, and what is for type checkers or for a module
    that is a script."""
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) not in ("TYPE_CHECKING", "__name__ == '__main__'")
    return not _is_text(statement)


def _is_text(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _without_fields(statement: ast.stmt) -> set[tuple[str, ...]]:
    """Takes the fields out of a config's class; gives the names of configs that they hold, whose
    methods still count."""
    if not isinstance(statement, ast.ClassDef) or not any(map(_is_config, statement.bases)):
        return set()
    fields = [node for node in statement.body if _is_field(node)]
    statement.body = [node for node in statement.body if node not in fields]
    names = set()
    for node in itertools.chain.from_iterable(map(ast.walk, fields)):
        if isinstance(node, ast.Name | ast.Attribute) and _is_config(node):
            names.add(_parts(node)[1])
    return names


def _is_config(named: ast.expr) -> bool:
    """True for the name of a config's class."""
    return _parts(named)[1][-1].endswith(CONFIGS)


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    names = (
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return {node.id for node in names} | {
        node.name for node in ast.walk(statement) if isinstance(node, DEFINITIONS)
    }


def _parts(node: ast.expr) -> tuple[ast.expr | None, tuple[str, ...]]:
    """The names of a dotted expression; and what it begins with, where that is no name."""
    if isinstance(node, ast.Attribute):
        root, names = _parts(node.value)
        return root, (*names, node.attr)
    if isinstance(node, ast.Name):
        return (None, (node.id,))
    return (node, ("",))


def _meant(names: Sequence[str], aliases: Mapping[str, Node]) -> Node | None:
    """The node that dotted names mean, if they begin with an imported one; None for others."""
    for length in range(len(names), 0, -1):
        module, name = aliases.get(".".join(names[:length]), ("", ""))
        rest = list(names[length:])
        while name == ALL and rest and _is_ours(module, rest[0]):
            module = f"{module}.{rest.pop(0)}"
        if module:
            return module, rest[0] if name == ALL and rest else name
    return None


@cache
def _modules_called(text: str) -> frozenset[Node]:
    """The package's modules that a string names, such as `mfulab.kernels.*`, or whose last part it
    names in them."""
    if not text.startswith(f"{PACKAGE.name}.") or not DOTTED.fullmatch(text):
        return frozenset()
    names = re.compile(re.escape(text).replace(r"\*", r"\w+"))
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
    }
    modules = {name.removesuffix(".__init__") for name in modules}
    named = frozenset((name, ALL) for name in modules if names.fullmatch(name))
    beginning, _, last = text.rpartition(".")
    if not named and beginning in modules and _holds(beginning, last):
        return frozenset({(beginning, last)})
    return named


def _holds(module: str, name: str) -> bool:
    """True if a module's text holds a name; a group of entry points is called like a module, too."""
    path = _file(module)
    return path is not None and re.search(rf"\b{name}\b", read_text(path)) is not None


def _data(folder: Path, names: Iterable[str]) -> set[Path]:
    """The package's data files below `folder` that one of `names` means: `x.csv`, or `y/*.yaml`, at
    any depth."""
    alike = (
        (name, file) for name in names for file in _data_files().get(name.rpartition(".")[2], ())
    )
    return {file for name, file in alike if file.is_relative_to(folder) and file.match(name)}


@cache
def _data_files() -> dict[str, list[Path]]:
    by_ending: dict[str, list[Path]] = {}
    for path in PACKAGE.rglob("*.*"):
        if path.suffix not in (".py", ".pyc", ".typed") and path.is_file():
            by_ending.setdefault(path.suffix[1:], []).append(path)
    return by_ending


def _is_ours(package: str, name: str) -> bool:
    """True for a module in a local package. Of a library none is looked for: it may not be
    installed everywhere."""
    return _is_local(package) and _file(f"{package}.{name}") is not None


@cache
def _is_local(module: str) -> bool:
    """True if a module belongs to this project or to the user's own files, not to an installed
    library."""
    top = module.split(".")[0]
    path = _file(top)
    is_library = (
        path is None
        or {"site-packages", "dist-packages"} & set(path.parts)
        or top in sys.stdlib_module_names
    )
    return path is not None and (path.is_relative_to(PACKAGE) or not is_library)


@cache
def _file(module: str) -> Path | None:
    """The Python file of a module, found without importing it or its parents; None for anything
    else."""
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
    """The module of a `_target_`, found by text. Raises ConfigurationError without the module, or
    such a name in it."""
    name, _, wanted = target.rpartition(".")
    while name and not _file(name):
        name, _, wanted = name.rpartition(".")
    if not name or (path := _file(name)) is None:
        wanted = target.rpartition(".")[0] or target
        raise ConfigurationError(Said("no_such_module", {"target": target, "module": wanted}))
    module = _module(name, path)
    names = {*module.bound, *module.aliases}
    is_dynamic = {"__getattr__", ALL} & names or (
        path.name == "__init__.py" and not module.is_shipped
    )
    if wanted not in names and not is_dynamic:
        raise unknown(f"_target_={target}: name in {name}", wanted, names, str(path))
    return name
