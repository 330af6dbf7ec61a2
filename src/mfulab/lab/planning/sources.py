"""The sources of a measurement, found by reading code and names of data files, never by importing: an edited kernel
re-runs its own runs alone. What a measurement reaches by name counts, and statements with an effect on import;
docstrings, comments, descriptions of fields, errors and names of local variables do not."""

import ast
import hashlib
import importlib.machinery
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any

import platformdirs

from mfulab.core.errors import ConfigurationError, unknown
from mfulab.core.files import UnreadableError, read_json, write_text
from mfulab.device import OF_GPUS, is_gpu, kind_of
from mfulab.lab.planning.store import holds, write_if_changed

PACKAGE = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)
Sources = Mapping[Path, str]  # each file, with the digest of what counts of it
Node = tuple[str, str]  # a module, and a name in it
ALL, IMPORTING = "*", ""  # in place of a name: every statement of the module; those that importing it needs
DOTTED = re.compile(r"\w+(\.[\w*]+)+")
WORDS = ("mfulab.core.errors",)  # what a message says changes no row that was measured
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BY_NAME = ("locals(", "vars()", "dir()", "eval(", "exec(")  # calls that see variables by their names
Variable = tuple[ast.AST, str]  # the scope that binds it, and its name
Scopes = tuple[ast.AST, ...]  # innermost first, the module last


def run_sources(step: str, target: str | None, hardware: str = "") -> Sources:
    """Files that a run of `step` with a model or kernel `target` depends on; a CPU's on nothing for GPUs alone."""
    roots = [(f"mfulab.measurements.{step}.measure", "measure")]
    if target:
        module = locate(target)
        roots.append((module, target.removeprefix(f"{module}.").split(".")[0]))
    return _reached(tuple(roots), (*WORDS, *(OF_GPUS if hardware and not is_gpu(kind_of(hardware)) else ())))


def closure(*modules: str) -> Sequence[Path]:
    """Files that all of these modules depend on."""
    return list(_reached(tuple((module, ALL) for module in modules)))


@cache
def _reached(roots: tuple[Node, ...], without: tuple[str, ...] = ()) -> Sources:
    """Walks the code, or returns the result that the user's cache folder holds for this text of the package."""
    asked = hashlib.sha256(repr((roots, without)).encode()).hexdigest()
    memory = platformdirs.user_cache_path(PACKAGE.name) / f"sources/{asked[:16]}.json"
    with suppress(FileNotFoundError, UnreadableError, KeyError):
        return {PACKAGE / file: digest for file, digest in read_json(memory)[_version()].items()}
    data, statements = _walk(roots, without)
    read = {file: file.read_bytes() for file in data}
    for module, places in statements.items():
        read[module.path] = "\n".join(map(module.text, sorted(places))).encode()
    sources = {file: hashlib.sha256(read[file]).hexdigest()[:16] for file in sorted(read)}
    with suppress(ValueError, ConfigurationError):  # of a file outside, which may change; of caches that are read-only
        kept = {str(file.relative_to(PACKAGE)): digest for file, digest in sources.items()}
        write_text(memory, json.dumps({_version(): kept}))
    return sources


@cache
def _version() -> str:
    """Digest of all that the package holds, and of Python's version, which decides how a statement reads."""
    held = hashlib.sha256(sys.version.encode())
    for file in sorted(path for path in PACKAGE.rglob("*.*") if path.suffix != ".pyc" and path.is_file()):
        held.update(f"{file.relative_to(PACKAGE)}\n".encode() + file.read_bytes())
    return held.hexdigest()


def _walk(roots: Iterable[Node], without: tuple[str, ...] = ()) -> tuple[set[Path], dict["_Module", set[int]]]:
    """Data files, and of each module the places of statements, that `roots` reach outside of modules `without`."""
    data, statements = set[Path](), dict["_Module", set[int]]()
    seen, waiting = set[Node](), set(roots)
    while waiting:
        seen.add(node := waiting.pop())
        if node[0].startswith(without) or not _is_local(node[0]) or (path := _file(node[0])) is None:
            continue
        module = _module(node[0], path)
        places, beyond = module.meant(node[1])
        read = statements.setdefault(module, set())
        for place in places - read:
            nodes, files, _ = module.read(place)
            beyond |= nodes
            data |= files
        read |= places
        waiting |= beyond - seen
    unread = list(data)
    while unread:
        file = unread.pop()
        included = _data(file.parent, INCLUDE.findall(file.read_text(encoding="utf-8", errors="ignore"))) - data
        data |= included
        unread += included
    return data, statements


def digests(files: Sources) -> str:
    """A line for each file with its digest."""
    roots = (PACKAGE.parent, Path.cwd())
    shorter = {file: [file.relative_to(root) for root in roots if file.is_relative_to(root)] for file in files}
    return "".join(f"{digest}  {[*shorter[file], file][0]}\n" for file, digest in files.items())


def write_digests(path: Path, files: Sources) -> None:
    """Writes the digest of each file to `path` where one changed; `path` is then as old as the newest of them."""
    if write_if_changed(path, digests(files)):
        newest = max(file.stat().st_mtime_ns for file in files)
        os.utime(path, ns=(newest, newest))


def changed_at(path: Path, files: Sources) -> float:
    """Time of the last change that counts: of `path` where it holds these digests, else of the newest file."""
    return max(file.stat().st_mtime for file in ([path] if holds(path, digests(files)) else files))


class _Module:
    """A module's statements, each known by its place; imports are no statements here, but names and what they mean."""

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
            raise ConfigurationError(f"{path}:{error.lineno}: {error.msg}.") from error
        for statement in tree.body:
            nodes = () if isinstance(statement, DEFINITIONS) else ast.walk(statement)
            for aliases in (self._imports(node) for node in nodes if isinstance(node, IMPORTS)):
                self.aliases |= aliases
                if _runs(statement):
                    self.imported |= {(module, IMPORTING) for module, _ in aliases.values()}
            if ALL in self.aliases:
                self.imported.add(self.aliases[ALL])
            if not isinstance(statement, IMPORTS) and not _is_text(statement):
                for bound in _bound(statement):
                    self.bound.setdefault(bound, set()).add(len(self.statements))
                self.statements.append(statement)
        self.effects = {place for place, statement in enumerate(self.statements) if self._has_effect(statement)}

    def meant(self, name: str) -> tuple[set[int], set[Node]]:
        """Places of what a name means and of what happens on import, and nodes of other modules that these bring."""
        if name == ALL:  # of a module that was imported whole, the statements say what they use
            named = {node for node in self.aliases.values() if node[1] != ALL}
        else:
            named = {self.aliases[name]} if name in self.aliases else set()
        is_known = name == IMPORTING or name in self.bound or bool(named)
        is_part = self.is_shipped and name != ALL and is_known
        places = self.effects | self.bound.get(name, set()) if is_part else set(range(len(self.statements)))
        return places, self.imported | named

    def _text(self, place: int) -> str:
        """The part of the statement at a place that counts, as text; making it takes as long as all else."""
        uses = self.read(place)[2]  # first: it takes out what does not count
        _number_variables(self.statements[place])
        return "\n".join([ast.dump(self.statements[place]), *uses])

    def _read(self, place: int) -> tuple[set[Node], set[Path], list[str]]:
        """Definitions, data files and resolved names that a statement uses; docstrings and such are removed from it."""
        inner: dict[str, Node] = {}
        dotted, strings, nodes = set[tuple[str, ...]](), set[str](), set[Node]()
        waiting: list[ast.AST] = [self.statements[place]]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Name | ast.Attribute):
                root, names = _parts(node)
                waiting += [root] if root else ()
                dotted.add(names)
            elif isinstance(node, ast.Constant):
                strings |= {node.value} if isinstance(node.value, str) else set()
            elif isinstance(node, IMPORTS):
                inner |= self._imports(node)
            else:
                if isinstance(node, DEFINITIONS):  # without docstrings
                    node.body = [child for child in node.body if not _is_text(child)]
                elif isinstance(node, ast.Call) and _parts(node.func)[1][-1] in ("Field", "column"):
                    node.keywords = [keyword for keyword in node.keywords if keyword.arg != "description"]
                    node.args = node.args if _parts(node.func)[1][-1] == "Field" else []
                elif isinstance(node, ast.JoinedStr):
                    texts = (str(part.value) if isinstance(part, ast.Constant) else ALL for part in node.values)
                    nodes |= _modules_called("".join(texts))
                waiting += ast.iter_child_nodes(node)
        aliases = self.aliases | inner
        meant = {names: _meant(names, aliases) for names in dotted}
        for names in dotted | {(string,) for string in strings}:
            if not meant.get(names) and names[0] in self.bound:
                nodes.add((self.name, names[0]))
        nodes |= {(self.name, ALL) for name in ("globals", "eval", "exec") if (name,) in dotted}
        nodes |= {(module, IMPORTING) for module, _ in inner.values()}
        nodes = nodes.union(*map(_modules_called, strings), filter(None, meant.values()))
        uses = sorted(f"{'.'.join(names)} is {'.'.join(node)}" for names, node in meant.items() if node)
        return nodes, _data(self.path.parent, strings), uses

    def _imports(self, node: ast.Import | ast.ImportFrom) -> dict[str, Node]:
        """The names that an import binds, each with what it means; `import a.b` is kept by its whole name."""
        if isinstance(node, ast.Import):
            return {alias.asname or alias.name: (alias.name, ALL) for alias in node.names}
        parents = self.package.split(".")[: len(self.package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        named = {alias.asname or alias.name: alias.name for alias in node.names}
        return {key: (f"{base}.{name}", ALL) if _is_ours(base, name) else (base, name) for key, name in named.items()}

    def _has_effect(self, statement: ast.stmt) -> bool:
        """True unless all that importing the statement does is to bind its names."""
        if isinstance(statement, DEFINITIONS):
            return any(map(self._calls_ours, statement.decorator_list))
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            return _runs(statement)
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = [name for target in targets for name in (getattr(target, "elts", None) or [target])]
        calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
        makes = any(self._calls_ours(call) and not _parts(call)[1][-1][:1].isupper() for call in calls)
        return makes or not all(isinstance(name, ast.Name) for name in names)

    def _calls_ours(self, called: ast.expr) -> bool:
        """True if what is called is defined in this project, and not by a library or by Python."""
        root, names = _parts(called)
        while isinstance(root, ast.Call):
            root, names = _parts(root.func)
        meant = _meant(names, self.aliases)
        return _is_local(meant[0]) if meant else names[0] in self.bound


_module = cache(_Module)


def _runs(statement: ast.stmt) -> bool:
    """False for what an import passes over: texts, and what is for type checkers or for a module that is a script."""
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) not in ("TYPE_CHECKING", "__name__ == '__main__'")
    return not _is_text(statement)


def _is_text(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return {node.id for node in names} | {node.name for node in ast.walk(statement) if isinstance(node, DEFINITIONS)}


def _number_variables(statement: ast.stmt) -> None:
    """Puts a number in place of the name of each variable that a function or comprehension binds. What others can name
    stays, such as parameters, attributes and globals, and all of a statement that looks at variables by name."""
    uses, stated = list[tuple[ast.AST, str, str, Scopes]](), set[str]()
    variables, numbers = dict[Variable, bool](), dict[Variable, str]()  # False of what keeps its name
    for node, scopes in _scoped(statement, (ast.Module([], []),)):
        if isinstance(node, ast.Call) and ast.unparse(node).startswith(BY_NAME):
            return
        field = next((field for field in ("id", "asname", "name", "rest") if getattr(node, field, None)), "")
        name = str(getattr(node, field, "")).partition(".")[0]  # of an import the part that it binds
        if is_named := isinstance(node, ast.Name | ast.ExceptHandler):
            uses.append((node, field, name, scopes))
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            is_variable = is_named and not isinstance(scopes[0], ast.Module | ast.ClassDef)
            variables[scopes[0], name] = is_variable and variables.get((scopes[0], name), True)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            variables |= {(node, arg.arg): False for arg in ast.iter_child_nodes(node.args) if isinstance(arg, ast.arg)}
        stated |= set(node.names) if isinstance(node, ast.Global | ast.Nonlocal) else set()
    for node, field, name, scopes in uses:
        variable = next(((scope, name) for scope in scopes if (scope, name) in variables), (node, ""))
        if name and name not in stated and variables.get(variable):
            setattr(node, field, numbers.setdefault(variable, str(len(numbers))))


def _scoped(node: ast.AST, scopes: Scopes) -> Iterator[tuple[ast.AST, Scopes]]:
    """Each node of a tree in order, with the scopes in which Python looks for its name."""
    yield node, scopes
    outside, inside = list(ast.iter_child_nodes(node)), list[Any]()
    if isinstance(node, COMPREHENSIONS):
        first, *others = node.generators
        inside = [first.target, *first.ifs, *others, *(child for child in outside if child not in node.generators)]
        outside = [first.iter]
    elif isinstance(node, (*DEFINITIONS, ast.Lambda)):
        inside = node.body if isinstance(node.body, list) else [node.body]
        outside = [child for child in outside if child not in inside]
    elif isinstance(node, ast.NamedExpr):
        outside = [node.value]
        yield node.target, tuple(dropwhile(lambda scope: isinstance(scope, COMPREHENSIONS), scopes))
    within = (node, *(scope for scope in scopes if not isinstance(scope, ast.ClassDef)))
    for children, around in ((outside, scopes), (inside, within)):
        for child in children:
            yield from _scoped(child, around)


def _parts(node: ast.expr) -> tuple[ast.expr | None, tuple[str, ...]]:
    """The names of a dotted expression; and what it begins with, where that is no name."""
    if isinstance(node, ast.Attribute):
        root, names = _parts(node.value)
        return root, (*names, node.attr)
    return (None, (node.id,)) if isinstance(node, ast.Name) else (node, ("",))


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
    """The package's modules that a string names, such as `mfulab.kernels.*`, or whose last part it names in them."""
    if not text.startswith(f"{PACKAGE.name}.") or not DOTTED.fullmatch(text):
        return frozenset()
    names = re.compile(re.escape(text).replace(r"\*", r"\w+"))
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    modules = {name.removesuffix(".__init__") for name in modules}
    beginning, _, last = text.rpartition(".")
    return frozenset((name, ALL) for name in modules if names.fullmatch(name)) or frozenset(
        {(beginning, last)} if beginning in modules else ()
    )


def _data(folder: Path, names: Iterable[str]) -> set[Path]:
    """The package's data files below `folder` that one of `names` means: `x.csv`, or `y/*.yaml`, at any depth."""
    alike = ((name, file) for name in names for file in _data_files().get(name.rpartition(".")[2], ()))
    return {file for name, file in alike if file.is_relative_to(folder) and file.match(name)}


@cache
def _data_files() -> dict[str, list[Path]]:
    by_ending: dict[str, list[Path]] = {}
    for path in PACKAGE.rglob("*.*"):
        if path.suffix not in (".py", ".pyc", ".typed") and path.is_file():
            by_ending.setdefault(path.suffix[1:], []).append(path)
    return by_ending


def _is_ours(package: str, name: str) -> bool:
    """True for a module in a local package. Of a library none is looked for: it may not be installed everywhere."""
    return _is_local(package) and _file(f"{package}.{name}") is not None


@cache
def _is_local(module: str) -> bool:
    """True if a module belongs to this project or to the user's own files, not to an installed library."""
    top = module.split(".")[0]
    path = _file(top)
    is_library = path is None or {"site-packages", "dist-packages"} & set(path.parts) or top in sys.stdlib_module_names
    return path is not None and (path.is_relative_to(PACKAGE) or not is_library)


@cache
def _file(module: str) -> Path | None:
    """The Python file of a module, found without importing it or its parents; None for anything else."""
    search: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    for part in module.split("."):
        spec = None if search is None else importlib.machinery.PathFinder.find_spec(part, search)
        if spec is None:
            return None
        search, path = spec.submodule_search_locations, spec.origin
    return Path(path).resolve() if path and path.endswith(".py") else None


@cache
def locate(target: str) -> str:
    """The module of a `_target_`, found by text. Raises ConfigurationError without the module, or such a name in it."""
    name, _, wanted = target.rpartition(".")
    while name and not _file(name):
        name, _, wanted = name.rpartition(".")
    if not name or (path := _file(name)) is None:
        raise ConfigurationError(f"_target_={target}: no module {target.rpartition('.')[0] or target} can be found.")
    module = _module(name, path)
    names = {*module.bound, *module.aliases}
    is_dynamic = {"__getattr__", ALL} & names or (path.name == "__init__.py" and not module.is_shipped)
    if wanted not in names and not is_dynamic:
        raise unknown(f"_target_={target}: name in {name}", wanted, names, str(path))
    return name
