"""Shared by all tests: the skip rules, and a copy of the workflow that a test may change."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from support.shared import leave_the_headline, made_once
from support.slow import AT_NIGHT
from support.workflow_copy import FEW_FIGURES, MINIATURE, ROOT, Project, copy_workflow, draw_only

# What a shell starts by `&` ignores an interrupt, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A busy machine is no failure. Every night, as with `make test ALL=1`, Hypothesis looks longer.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.register_profile("night", deadline=None, max_examples=200)
hypothesis.settings.load_profile("night" if AT_NIGHT else "quick")
pytest.register_assert_rewrite("support.pretend")  # its assertions tell what they compared


@pytest.fixture(autouse=True, scope="session")
def locks_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs of tests wait for no other run on this machine: a sweep, or the tests beside these."""
    os.environ["MFULAB_LOCKS"] = str(tmp_path_factory.mktemp("locks"))


@pytest.fixture(autouse=True)
def no_job_is_left_behind() -> Iterator[None]:
    """A model that makes its process a rank of a pretended job does so for good: the next test is
    in none."""
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def no_device_is_replaced() -> Iterator[None]:
    """Root may rename a file onto `/dev/null`: all programs of the machine then share what they
    throw away."""
    before = Path(os.devnull).is_char_device()
    yield
    assert Path(os.devnull).is_char_device() == before, f"{os.devnull} was replaced"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # one process alone makes what a module shares once
        _spread(items)
    reason = _why_no_gpu() if any(item.get_closest_marker("gpu") for item in items) else ""
    for item in items:
        if item.get_closest_marker("gpu") and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_configure() -> None:
    """Has Python look for no garbage while modules are imported: what they make stays."""
    gc.set_threshold(2_000_000, 10, 10)


def pytest_collection_finish() -> None:
    """What is collected stays: the collector need not walk it, and the libraries, in every test."""
    gc.set_threshold(20_000, 10, 10)
    composition = sys.modules.get("mfulab.lab.planning.composition")
    if composition:
        from support.composed import composed_once

        composition.compose = composed_once(composition.compose)
    gc.freeze()


def _spread(items: list[pytest.Item]) -> None:
    """Gives each module to one process, which compiles and draws once for its tests; those of the
    workflow go to any.

    The latter are spread evenly among the others: they wait half of their time, in which others
    compute. One of those that take the miniature comes first, and the rest last: all processes
    would else wait for the one that makes it. A slow test cannot be that one: pytest leaves such
    tests out after this.
    """
    workflow = [item for item in items if item.get_closest_marker("workflow")]
    workflow.sort(
        key=lambda item: (
            "project" in getattr(item, "fixturenames", ()),
            not item.get_closest_marker("slow"),
        )
    )
    workflow = workflow[-1:] + workflow[:-1]
    others = [item for item in items if not item.get_closest_marker("workflow")]
    for item in others:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}.{item.path.stem}"))
    places = {
        item: index / len(kind) for kind in (workflow, others) for index, item in enumerate(kind)
    }
    items.sort(key=places.__getitem__)


def _why_no_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else "needs an NVIDIA GPU that torch can use"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """In CI nothing may skip but `gpu` and tests of recorded traces, which are not in the checkout:
    a missing system package is a failure there."""
    outcome = yield
    report = outcome.get_result()
    if (
        report.skipped
        and os.environ.get("MFULAB_CI")
        and item.get_closest_marker("gpu") is None
        and not hasattr(report, "wasxfail")
        and "no traces in" not in str(report.longrepr)
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"


@pytest.fixture
def make_project(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Project]:
    """Copies the workflow into an empty directory; `with_source` copies the package too, so that it
    can be edited."""

    def make(with_source: bool = False) -> Project:
        return Project(copy_workflow(tmp_path_factory.mktemp("project"), with_source))

    return make


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The miniature with its report, made once for all of pytest's workers; who changes something
    takes `measured`."""

    def make(folder: Path) -> None:
        draw_only(copy_workflow(folder, with_source=True), FEW_FIGURES)
        Project(folder).snakemake("report", *MINIATURE)

    return Project(made_once(tmp_path_factory, "workflow", make))


@pytest.fixture(scope="session")
def tables_of_recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of the recordings that the project ships, made once for all of pytest's workers;
    who changes something takes a copy."""

    def make(folder: Path) -> None:
        from mfulab.cli.main import main

        main(["tables", "--reference", str(ROOT / "results/reference"), "--out", str(folder)])

    return made_once(tmp_path_factory, "tables_of_recordings", make)


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's first figure alone: to select the rows of all takes a page's time, to draw them
    many seconds."""
    leave_the_headline(monkeypatch)


@pytest.fixture
def measured(project: Project, tmp_path: Path) -> Project:
    """A copy of the finished miniature, modification times kept, that a test may change."""
    shutil.copytree(project.folder, tmp_path / "copy", symlinks=True)
    return Project(tmp_path / "copy")


@pytest.fixture
def benchmark_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the scripts in benchmarks/ and validation/ importable, as they are to one another when
    run."""
    for folder in ("benchmarks", "validation"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
