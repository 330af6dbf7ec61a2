"""Mutation score: the share of small faults, inserted into a sample of functions, that the tests
detect.

    PYTHONPATH=/tmp/cosmic python scripts/mutants.py src/mfulab/mfu --tests tests/mfu --seed 1

CONTRIBUTING.md describes /tmp/cosmic. The faults are cosmic-ray's: another operator, comparison or
number, a negated condition, a loop that ends at once. Each is inserted into a copy of the checkout,
where the tests that reach its function run until one fails. No function gets a second mutant before
every other function has one.
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

MODULE = "module"  # scope of code outside of functions: constants, fields of classes
ASKED_MARKS = "not slow and not workflow and not gpu"
PASSED, NONE_COLLECTED = 0, 5  # exit statuses of pytest
# Imported once before forking, with all submodules that the tests use, to save time per mutant.
HEAVY = ("torch", "transformers", "pandas", "sympy", "yaml", "pydantic", "rich", "hypothesis")
Span = tuple[tuple[int, int], tuple[int, int]]  # (line, column) of the first and the last character
Reached = dict[str, list[str]]  # by scope, the tests that run it
Outcome = tuple[str, float]  # result of the tests for a mutant, and CPU seconds


@dataclass(frozen=True)
class Mutant:
    """One fault in a copy of the checkout."""

    path: str
    scope: str
    line: int
    operator: str
    before: str  # the line
    after: str
    source: str  # the whole file with the fault


@dataclass(frozen=True)
class Judged:
    """Result of one mutant, a row of the log."""

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
    """Line ranges of the functions in a module, and positions of its annotations."""

    def __init__(self, source: str) -> None:
        self.functions: list[tuple[int, int, str]] = []
        self.typed: list[Span] = []
        self._names: list[str] = []
        self.visit(ast.parse(source))

    def at(self, line: int) -> str:
        """Qualified name of the innermost function around a line; MODULE outside of functions."""
        around = [function for function in self.functions if function[0] <= line <= function[1]]
        if not around:
            return MODULE
        return max(around)[2]

    def is_typed(self, span: Span) -> bool:
        """True if a mutant at this position would only change an annotation."""
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
    """Copies the files of a checkout that git does not ignore into a temporary folder, and compiles
    them."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    listing = ["git", "-C", str(root), "ls-files", "-z"]
    listing += ["--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listing, text=True).split("\0"):
        if name and (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    subprocess.run([sys.executable, "-m", "compileall", "-q", folder / "src"], check=False)
    return folder


def modules(root: Path, places: Sequence[str]) -> list[str]:
    """Python files in the given folders, or the given files, as paths relative to the root."""
    found = []
    for place in places:
        path = root / place
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.append(module.relative_to(root).as_posix())
    return found


def drawn(root: Path, paths: Sequence[str], count: int, chance: random.Random) -> list[Mutant]:
    """Draws a sample of mutants. Takes scopes in random order, and one random position of each per
    round, with a random mutant of that position."""
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
    """Possible mutants of a file, by scope and then by position."""
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
            before = old.strip()
            after = new.strip()
            break
    operator = name.removeprefix("core/")
    return Mutant(path, scope, line, operator, before, after, mutated)


def _is_python(source: str) -> bool:
    """False if the source cannot be parsed: cosmic-ray also replaces the stars of `**names`."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


class Chosen:
    """Pytest plugin that keeps only the tests with these names, or all tests if there are none."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = frozenset(names)

    def pytest_sessionstart(self) -> None:
        """Makes Hypothesis use the same examples for every mutant, without shrinking."""
        import hypothesis

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        quick = hypothesis.settings(derandomize=True, database=None, phases=phases)
        hypothesis.settings.register_profile("mutants", quick)
        hypothesis.settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list) -> None:
        if self.names:
            items[:] = [item for item in items if item.nodeid in self.names]


class Watched(Chosen):
    """Pytest plugin that records which lines each passing test runs."""

    def __init__(self, folder: Path, paths: Sequence[str]) -> None:
        import coverage

        super().__init__()
        self.folder = folder
        self.paths = paths
        self.failed: list[str] = []
        files = [str(folder / path) for path in paths]
        self.coverage = coverage.Coverage(data_file=None, include=files, config_file=False)

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
        report = {"reached": self.reached(), "imported": heavy}
        (self.folder / "told.json").write_text(json.dumps(report), encoding="utf-8")

    def reached(self) -> Reached:
        """Tests by `path::scope`. The scope MODULE has all tests that run any function of the
        module."""
        data = self.coverage.get_data()
        found: dict[str, set[str]] = defaultdict(set)
        for path in self.paths:
            scopes = Scopes((self.folder / path).read_text(encoding="utf-8"))
            for line, tests in data.contexts_by_lineno(str(self.folder / path)).items():
                scope = scopes.at(line)
                if scope != MODULE:
                    passed = {test for test in tests if test} - {*self.failed}
                    found[f"{path}::{scope}"] |= passed
                    found[f"{path}::{MODULE}"] |= passed
        return {scope: sorted(tests) for scope, tests in found.items()}


def run_tests(
    folder: Path, tests: Sequence[str], plugin: Chosen, limit_s: int, *more: str
) -> Outcome:
    """Runs tests in a forked process. Returns the outcome and CPU seconds; output goes to
    `output.txt`."""
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
    """Runs the tests that reach each mutant, and prints the outcome."""
    judged = []
    for mutant in mutants:
        path = folder / mutant.path
        original = path.read_text(encoding="utf-8")
        names = reached.get(f"{mutant.path}::{mutant.scope}", [])
        outcome, cpu_s = "unreached", 0.0
        if names:
            path.write_text(mutant.source, encoding="utf-8")
            files = sorted({name.partition("::")[0] for name in names})
            outcome, cpu_s = run_tests(folder, files, Chosen(names), limit_s, "-x")
            path.write_text(original, encoding="utf-8")
        result = Judged(
            outcome, mutant.path, mutant.line, mutant.scope, mutant.operator,
            mutant.before, mutant.after, len(names), round(cpu_s, 1),
        )  # fmt: skip
        judged.append(result)
        print(
            f"{outcome:9} {result.path}:{result.line} {result.scope}: {result.before} → {result.after}",
            flush=True,
        )
    return judged


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws mutants, runs the tests on each, and prints the score."""
    parser = argparse.ArgumentParser(description="The mutation score of modules by their tests.")
    parser.add_argument("places", nargs="+", help="modules to mutate, or folders of them")
    parser.add_argument("--tests", nargs="+", required=True, help="files or folders of tests")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the checkout")
    parser.add_argument("--count", type=int, default=40, help="mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=120, help="CPU seconds a mutant")
    parser.add_argument("--log", type=Path, help="a CSV file of all mutants")
    options = parser.parse_args(arguments)
    folder = copied(options.root)
    paths = modules(folder, options.places)
    outcome, cpu_s = run_tests(folder, options.tests, Watched(folder, paths), 20 * options.limit)
    report = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    reached = report["reached"]
    for name in report["imported"]:
        with suppress(ImportError):
            importlib.import_module(name)
    print(
        f"{len(set().union(*reached.values()))} tests reach them, in {cpu_s:.0f} CPU s; all pass: {outcome}"
    )
    mutants = drawn(folder, paths, options.count, random.Random(options.seed))  # noqa: S311
    judged = judge(folder, mutants, reached, options.limit)
    if options.log:
        with options.log.open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(field.name for field in fields(Judged))
            lines.writerows(map(astuple, judged))
    counts = Counter(result.outcome for result in judged)
    found = counts["killed"] + counts["timeout"]
    print(f"{found} of {len(judged)} found: {100 * found / len(judged):.0f} %", dict(counts))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
