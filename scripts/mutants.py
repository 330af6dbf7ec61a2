"""Mutation score: the share of small faults, put into a sample of functions, that tests find.

    PYTHONPATH=/tmp/cosmic python scripts/mutants.py src/mfulab/mfu --tests tests/mfu --seed 1

CONTRIBUTING.md says what /tmp/cosmic holds.
The faults are cosmic-ray's: another operator, comparison or number, a negated condition, a loop
that ends at once. Each is put into a copy of the checkout, and the tests that reach its function
run there until one fails. A function gives a second mutant only after every other gave one.
"""

import argparse
import ast
import csv
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path

MODULE = "module"  # scope of what stands in no function: constants, classes' fields
ASKED_MARKS = "not slow and not workflow and not gpu"
PASSED, NONE_COLLECTED = 0, 5  # exit statuses of pytest
# Imported once, with what the tests import of them, so that no mutant waits for that.
HEAVY = ("torch", "transformers", "pandas", "sympy", "yaml", "pydantic", "rich", "hypothesis")
Span = tuple[tuple[int, int], tuple[int, int]]  # (line, column) of the first and the last character
Reached = dict[str, list[str]]  # tests by the scope that they run
Outcome = tuple[str, float]  # what became of a mutant, and CPU seconds


@dataclass(frozen=True)
class Mutant:
    """One small fault in a copy of the checkout."""

    path: str
    scope: str
    line: int
    operator: str
    before: str  # the line
    after: str
    source: str  # the whole file with the fault


@dataclass(frozen=True)
class Judged:
    """A line of the log."""

    outcome: str
    path: str
    line: int
    scope: str
    operator: str
    before: str
    after: str
    tests: int
    cpu_s: float


class Scopes(ast.NodeVisitor):
    """Functions of a module with their lines, and the places of its annotations."""

    def __init__(self, source: str) -> None:
        self.functions: list[tuple[int, int, str]] = []
        self.typed: list[Span] = []
        self._names: list[str] = []
        self.visit(ast.parse(source))

    def at(self, line: int) -> str:
        """Name of the innermost function around a line."""
        around = [one for one in self.functions if one[0] <= line <= one[1]]
        if not around:
            return MODULE
        return max(around)[2]

    def is_typed(self, span: Span) -> bool:
        """True where a mutant would change an annotation alone."""
        return any(first <= span[0] and span[1] <= last for first, last in self.typed)

    def visit(self, node: ast.AST) -> None:
        for name in ("annotation", "returns"):
            self._leave_out(getattr(node, name, None))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and _is_none(node.right):
            self._leave_out(node)  # an alias of a type
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._names.append(node.name)
            if is_function:
                first = node.body[0].lineno
                self.functions.append((first, node.end_lineno or first, ".".join(self._names)))
            self.generic_visit(node)
            self._names.pop()
        else:
            self.generic_visit(node)

    def _leave_out(self, node: ast.AST | None) -> None:
        if isinstance(node, ast.expr):
            end = node.end_lineno or node.lineno, node.end_col_offset or 0
            self.typed.append(((node.lineno, node.col_offset), end))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def copied(root: Path) -> Path:
    """A copy of the files of a checkout that git knows, compiled."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    listed = [
        "git",
        "-C",
        str(root),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    for name in subprocess.check_output(listed, text=True).split("\0"):
        if name and (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    subprocess.run([sys.executable, "-m", "compileall", "-q", folder / "src"], check=False)
    return folder


def modules(root: Path, places: Sequence[str]) -> list[str]:
    """Python files in folders, or the files themselves, as paths from the root."""
    found = []
    for place in places:
        path = root / place
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.append(module.relative_to(root).as_posix())
    return found


def drawn(root: Path, paths: Sequence[str], count: int, chance: random.Random) -> list[Mutant]:
    """A sample of mutants: scopes in random order, one random place of each a round, and of the
    mutants at that place a random one."""
    scopes = []
    for path in paths:
        scopes += list(_places(root, path).values())
    found: list[Mutant] = []
    chance.shuffle(scopes)
    for places in scopes:
        chance.shuffle(places)
    while scopes and len(found) < count:
        for places in scopes:
            mutant = _mutated(root, *chance.choice(places.pop()))
            if _is_python(mutant.source):
                found.append(mutant)
        scopes = [places for places in scopes if places]
    return found[:count]


Variant = tuple[str, str, int, int, str]  # path, operator, occurrence, line, scope


def _places(root: Path, path: str) -> dict[str, list[list[Variant]]]:
    """Mutants of a file by scope and place."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = (root / path).read_text(encoding="utf-8")
    scopes = Scopes(source)
    nodes = list(ast_nodes(get_ast(source)))
    found: dict[tuple[str, Span], list[Variant]] = defaultdict(list)
    for name in sorted(operator_names()):
        kind = get_operator(name)
        if kind.arguments():
            continue
        occurrence = 0
        for node in nodes:
            for span in kind().mutation_positions(node):
                scope = scopes.at(span[0][0])
                if not scopes.is_typed(span):
                    found[scope, span].append((path, name, occurrence, span[0][0], scope))
                occurrence += 1
    by_scope: dict[str, list[list[Variant]]] = defaultdict(list)
    for (scope, _), variants in found.items():
        by_scope[scope].append(variants)
    return by_scope


def _mutated(root: Path, path: str, name: str, occurrence: int, line: int, scope: str) -> Mutant:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (root / path).read_text(encoding="utf-8")
    mutated = mutate_code(source, get_operator(name)(), occurrence)
    before = after = ""
    for old, new in zip(source.splitlines(), mutated.splitlines(), strict=False):
        if old != new:
            before, after = old.strip(), new.strip()
            break
    operator = name.removeprefix("core/")
    return Mutant(path, scope, line, operator, before, after, mutated)


def _is_python(source: str) -> bool:
    """False for what no parser takes: cosmic-ray replaces the stars of `**names` too."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


class Chosen:
    """Plugin of pytest that keeps the tests of these names, all where there are none."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = frozenset(names)

    def pytest_sessionstart(self) -> None:
        """Has Hypothesis draw the same examples for every mutant, and leave them as found."""
        import hypothesis

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        quick = hypothesis.settings(derandomize=True, database=None, phases=phases)
        hypothesis.settings.register_profile("mutants", quick)
        hypothesis.settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list) -> None:
        if self.names:
            items[:] = [item for item in items if item.nodeid in self.names]


class Watched(Chosen):
    """Plugin of pytest that tells the lines that each test which passes runs."""

    def __init__(self, folder: Path, paths: Sequence[str]) -> None:
        import coverage

        super().__init__()
        self.folder = folder
        self.paths = paths
        self.failed: list[str] = []
        whole = [str(folder / path) for path in paths]
        self.coverage = coverage.Coverage(data_file=None, include=whole, config_file=False)

    def pytest_collection(self) -> None:
        self.coverage.start()

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        heavy = [name for name in sys.modules if name.partition(".")[0] in HEAVY]
        told = {"reached": self.reached(), "imported": heavy}
        (self.folder / "told.json").write_text(json.dumps(told), encoding="utf-8")

    def reached(self) -> Reached:
        """Tests by `path::scope`; those of a module are all that run any of its functions."""
        data = self.coverage.get_data()
        found: dict[str, set[str]] = defaultdict(set)
        for path in self.paths:
            scopes = Scopes((self.folder / path).read_text(encoding="utf-8"))
            for line, tests in data.contexts_by_lineno(str(self.folder / path)).items():
                scope = scopes.at(line)
                if scope != MODULE:
                    told = {test for test in tests if test} - {*self.failed}
                    found[f"{path}::{scope}"] |= told
                    found[f"{path}::{MODULE}"] |= told
        return {scope: sorted(tests) for scope, tests in found.items()}


def asked(folder: Path, tests: Sequence[str], plugin: Chosen, limit_s: int, *more: str) -> Outcome:
    """Asks the tests in a process of their own; what it prints goes to `output.txt`."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = _child(folder, tests, plugin, limit_s, more)
        finally:
            os._exit(code)
    until = time.monotonic() + 10 * limit_s
    status, spent = _ended(child)
    while status is None and time.monotonic() < until:
        time.sleep(0.05)
        status, spent = _ended(child)
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if status is None or os.WIFSIGNALED(status):
        return "timeout", spent
    code = os.WEXITSTATUS(status)
    return {PASSED: "survived", NONE_COLLECTED: "unreached"}.get(code, "killed"), spent


def _ended(child: int) -> tuple[int | None, float]:
    ended, status, usage = os.wait4(child, os.WNOHANG)
    if not ended:
        return None, 0.0
    return status, usage.ru_utime + usage.ru_stime


def _child(
    folder: Path, tests: Sequence[str], plugin: Chosen, limit_s: int, more: Sequence[str]
) -> int:
    import pytest

    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["PYTHONPATH"] = str(folder / "src")
    sys.path.insert(0, str(folder / "src"))
    options = ["-q", "-m", ASKED_MARKS, "-p", "no:cacheprovider", "-p", "no:xdist", *more]
    return int(pytest.main([*options, *tests], plugins=[plugin]))


def judge(folder: Path, mutants: Sequence[Mutant], reached: Reached, limit_s: int) -> list[Judged]:
    """Asks the tests that reach each mutant, and prints what became of it."""
    judged = []
    for mutant in mutants:
        path = folder / mutant.path
        original = path.read_text(encoding="utf-8")
        names = reached.get(f"{mutant.path}::{mutant.scope}", [])
        outcome, cpu_s = "unreached", 0.0
        if names:
            path.write_text(mutant.source, encoding="utf-8")
            files = sorted({name.partition("::")[0] for name in names})
            outcome, cpu_s = asked(folder, files, Chosen(names), limit_s, "-x")
            path.write_text(original, encoding="utf-8")
        one = Judged(
            outcome, mutant.path, mutant.line, mutant.scope, mutant.operator,
            mutant.before, mutant.after, len(names), round(cpu_s, 1),
        )  # fmt: skip
        judged.append(one)
        print(
            f"{outcome:9} {one.path}:{one.line} {one.scope}: {one.before} → {one.after}", flush=True
        )
    return judged


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws mutants, asks the tests about each, and prints the score."""
    parser = argparse.ArgumentParser(description="The mutation score of modules by their tests.")
    parser.add_argument("places", nargs="+", help="modules to mutate, or folders of them")
    parser.add_argument("--tests", nargs="+", required=True, help="files or folders of tests")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the checkout")
    parser.add_argument("--count", type=int, default=40, help="mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=120, help="CPU seconds a mutant")
    parser.add_argument("--log", type=Path, help="a CSV file of all mutants")
    given = parser.parse_args(arguments)
    folder = copied(given.root)
    paths = modules(folder, given.places)
    watched, cpu_s = asked(folder, given.tests, Watched(folder, paths), 20 * given.limit)
    told = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    reached = told["reached"]
    for name in told["imported"]:
        with suppress(ImportError):
            importlib.import_module(name)
    print(
        f"{len(set().union(*reached.values()))} tests reach them, in {cpu_s:.0f} CPU s; all pass: {watched}"
    )
    mutants = drawn(folder, paths, given.count, random.Random(given.seed))  # noqa: S311
    judged = judge(folder, mutants, reached, given.limit)
    if given.log:
        with given.log.open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(field.name for field in fields(Judged))
            lines.writerows(map(astuple, judged))
    counts = Counter(one.outcome for one in judged)
    found = counts["killed"] + counts["timeout"]
    print(f"{found} of {len(judged)} found: {100 * found / len(judged):.0f} %", dict(counts))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
