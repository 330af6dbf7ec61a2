"""Runs a sweep on machines that this one can emulate, and reports the results and what is wrong
with them.

    python benchmarks/machines.py                                  the miniature, with bf16, on every machine
    python benchmarks/machines.py --only avx2,one-core             on some
    python benchmarks/machines.py --experiment quickstart          what a newcomer runs; minutes a machine
    python benchmarks/machines.py --only neighbour --times 20      20 sweeps next to a load
    python benchmarks/machines.py --markdown                       the table of docs/reliability.md

Each machine is a copy of the workflow that runs with environment variables, an affinity, a cgroup,
or next to another process. The table is computed from the tables and the page of each sweep. The
run that the page's first sentence is about is measured a second time. Exit status 0 means that
nothing is wrong.
"""

import argparse
import html
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import estimates
import first_sentence
import pandas as pd
import trivial

from mfulab.lab.planning.naming import short
from mfulab.lab.report import claims, figures, frames, selection, trust

# Overrides for each experiment: bf16 is the format that CPUs most often do not support.
EXPERIMENTS = {"miniature": ("precision=fp32,bf16",), "quickstart": ()}
CGROUPS = Path("/sys/fs/cgroup")
# Uses half of the first CPU's time. Ends with the process that started it.
NEIGHBOUR = """import time
parent = os.getppid()
while os.getppid() == parent:
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        pass
    time.sleep(0.02)
"""
COUNTED = 'steal = sum(core.steal for core in times) if hasattr(times[0], "steal") else None'
STOLEN = "steal = 0.2 * total"
FIRST_CPU = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"

# Sets up limits for a sweep while it runs. Yields Python code with which the command enters them.
Limits = Callable[[], AbstractContextManager[str]]


@dataclass(frozen=True)
class Machine:
    """Machine that this one can emulate. `title` is its name in the table."""

    title: str
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables
    limits: Limits = lambda: nullcontext("")
    # a file of the package, an expression to replace in the copy, and its replacement
    edit: tuple[str, str, str] | None = None
    # formats that it has no units for; None: according to this CPU's flags
    lacks: frozenset[str] | None = None
    flag: str = ""  # verdict flag that at least one of its rows must have
    missing: Callable[[], str] = lambda: ""  # why it cannot be emulated here; empty if it can


def instructions(
    aten: str, onednn: str, mkl: str, openblas: str, numpy: str, numba: str
) -> dict[str, str]:
    """Environment variables that limit each library to an instruction set: ATen, oneDNN, MKL,
    OpenBLAS, NumPy, Numba."""
    return {
        "ATEN_CPU_CAPABILITY": aten,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
        "OPENBLAS_CORETYPE": openblas,
        "NPY_DISABLE_CPU_FEATURES": numpy,
        "NUMBA_CPU_NAME": numba,
        "NUMBA_CPU_FEATURES": "",  # only those of that CPU
    }


@contextmanager
def cgroup(controllers: Sequence[str], version_1: str, version_2: str) -> Iterator[str]:
    """Creates a cgroup with one limit, given as `file=value` for each cgroup version. Yields code
    that enters it. Raises OSError without permission."""
    old = (CGROUPS / controllers[0] / "cgroup.procs").exists()
    file, value = (version_1 if old else version_2).split("=")
    tops = [CGROUPS / name for name in controllers] if old else [CGROUPS]
    if not old:
        (CGROUPS / "cgroup.subtree_control").write_text(
            " ".join(f"+{name}" for name in controllers[:1])
        )
    folders = [top / f"mfulab-machines-{os.getpid()}" for top in tops]
    try:
        for folder in folders:
            folder.mkdir()
        (folders[0] / file).write_text(value)
        yield "".join(
            f"open({str(folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid()));"
            for folder in folders
        )
    finally:
        for folder in filter(Path.exists, folders):
            while (folder / "cgroup.procs").read_text():  # waits for the sweep's last process
                time.sleep(0.1)
            folder.rmdir()


def quota() -> AbstractContextManager[str]:  # 50 ms of every 100
    return cgroup(("cpu", "cpuacct"), "cpu.cfs_quota_us=50000", "cpu.max=50000 100000")


def little_memory() -> AbstractContextManager[str]:
    return cgroup(("memory",), f"memory.limit_in_bytes={3 << 30}", f"memory.max={3 << 30}")


@contextmanager
def neighbour() -> Iterator[str]:
    """Runs a process next to the sweep that uses half of the first CPU."""
    process = subprocess.Popen([sys.executable, "-c", f"import os; {FIRST_CPU} {NEIGHBOUR}"])
    try:
        yield ""
    finally:
        process.kill()
        process.wait()


def no_cgroup(limits: Limits) -> Callable[[], str]:
    """Returns a function that returns why these limits cannot be set here, or an empty text."""

    def missing() -> str:
        try:
            with limits():
                return ""
        except OSError as error:
            return f"needs the right to make a cgroup: {error}"

    return missing


def without(flag: str) -> Callable[[], str]:
    """Returns a function that returns why the machine cannot be emulated on a CPU without this
    flag, or an empty text."""
    return lambda: "" if flag in flags() else f"this {platform.machine()} CPU has no {flag}"


def flags() -> set[str]:
    """Feature flags of the CPU."""
    found = re.search(
        r"^(?:flags|Features)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
    )
    return set(found[1].split()) if found else set()


def lacking() -> frozenset[str]:
    """Formats of these sweeps that the CPU has no units for, according to its flags."""
    return frozenset() if flags() & {"avx512_bf16", "amx_bf16", "bf16"} else frozenset({"bf16"})


V4 = "AVX512_SPR AVX512_ICL X86_V4"
NO_BF16 = frozenset({"bf16"})
SSE = instructions("default", "SSE41", "SSE4_2", "Nehalem", f"{V4} X86_V3", "nehalem") | {
    "MKL_CBWR": "COMPATIBLE"
}
AVX2 = instructions("avx2", "AVX2", "AVX2", "Haswell", V4, "haswell")
AVX512 = instructions(
    "avx512", "AVX512_CORE", "AVX512", "SkylakeX", "AVX512_SPR AVX512_ICL", "skylake-avx512"
)
MACHINES = {
    "native": Machine("as it is"),
    "sse4.1": Machine("SSE4.1", SSE, lacks=NO_BF16, missing=without("sse4_1")),
    "avx2": Machine("AVX2", AVX2, lacks=NO_BF16, missing=without("avx2")),
    "avx512": Machine("AVX-512 without bf16", AVX512, lacks=NO_BF16, missing=without("avx512f")),
    "one-core": Machine("one core, by affinity", limits=lambda: nullcontext(FIRST_CPU)),
    "half-a-cpu": Machine(
        "a quota of 0.5 CPU", limits=quota, flag="held_back", missing=no_cgroup(quota)
    ),
    "3-gb": Machine("3 GB of memory", limits=little_memory, missing=no_cgroup(little_memory)),
    "neighbour": Machine("a neighbour on half of a core", limits=neighbour, flag="beside"),
    "steal": Machine(
        "a hypervisor that takes a fifth (in the counters)",
        edit=("src/mfulab/device/cpu.py", COUNTED, STOLEN),
        flag="stolen",
    ),
}


@dataclass
class Page:
    """Findings on the page of one sweep: cells of its row by column, and descriptions of what is
    wrong. `full` is the share of marks drawn full, in percent. `first` is the judgement of the
    first sentence, empty without a page."""

    cells: dict[str, str]
    wrongs: list[str]
    full: float | None = None
    first: str = ""

    def judge(self, first: str) -> None:
        """Adds what is said of the first sentence, which is wrong unless it is true."""
        self.first = first
        if first != first_sentence.TRUE:
            self.wrongs.append(f"the first sentence: {first}")

    def line(self, title: str) -> str:
        """Row of the table."""
        shown = {"machine": title, **self.cells}
        if self.first:
            full = "" if self.full is None else f"{math.floor(self.full)} %"
            judged = {"marks full": full, "first sentence": self.first}
            shown |= {**judged, "wrong": str(len(self.wrongs))}
        return f"| {' | '.join(shown.get(column, '') for column in COLUMNS)} |"


def swept(machine: Machine, experiment: str, *overrides: str) -> Page:
    """Runs the whole command on `machine` in a copy of the project, and measures the run of the
    page's first sentence again there.

    Raises CalledProcessError if a command fails.
    """
    with tempfile.TemporaryDirectory(prefix="mfulab-machine-") as name, machine.limits() as enter:
        folder = trivial.copy_workflow(Path(name), with_source=machine.edit is not None)
        variables = dict(machine.variables)
        if machine.edit is not None:
            file, line, instead = machine.edit
            text = (folder / file).read_text(encoding="utf-8")
            assert text.count(line) == 1, f"{file} has no line {line!r}"
            (folder / file).write_text(text.replace(line, instead), encoding="utf-8")
            variables["PYTHONPATH"] = str(folder / "src")
        begin = f"import os, sys; {enter} os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        settings = (f"experiment={experiment}", "device=cpu", *EXPERIMENTS[experiment], *overrides)
        options = ("--cores", "1", "--config", *settings)
        variables["MFULAB_LOCKS"] = name
        run = partial(trivial.run, folder, "-c", begin, **variables)
        cost = run("-m", "snakemake", "report", *options)
        tables, problems = frames.read(folder / "results/tables")
        tables = trust.judged(tables)
        page = found(folder, machine, tables)
        page.cells["minutes"] = f"{cost.time_s / 60:.1f}"
        page.wrongs += [problem.in_words() for problem in problems]
        rows = ("-m", "snakemake", "rows", *options)
        page.judge(first_sentence.measured_again(folder, tables, run, *rows))
        return page


def found(folder: Path, machine: Machine, tables: frames.Tables) -> Page:
    """Reads the judged tables and the page of a sweep in `folder`."""
    text = (folder / "reports/report.html").read_text(encoding="utf-8")
    heading = re.search(r"<h1>(.*?)</h1>", text, re.DOTALL)
    sentence = _plain(html.unescape(heading[1])) if heading else ""
    profile, matmul = tables["profile"], tables["matmul"]
    lacks = lacking() if machine.lacks is None else machine.lacks
    wrongs = wrong(tables, lacks)
    if not sentence or sentence != _plain(first_sentence.sentence(tables)):
        wrongs.append(f"the page does not begin with MFU and utilization: {sentence!r}")
    if machine.flag and not _flagged(profile, machine.flag).any():
        wrongs.append(f"no row is flagged {machine.flag}")
    timed_here = [frames.own_or_recorded(frames.ok(rows, "time_s")) for rows in (profile, matmul)]
    timed = pd.concat(map(trust.doubtful, timed_here))
    rows = len(profile) + len(matmul)
    cells = {
        "rows": str(rows),
        "doubtful": str(int(timed.sum())),
        "not measured": str(rows - len(timed)),
        "MFU ≤": f"{profile['mfu_percent'].max():.0f} %",
        "matmuls ≤": f"{matmul['share_of_measured_percent'].max():.0f} %",
        "estimate ÷ truth": estimate(folder),
        "the page begins": sentence,
    }
    return Page(cells, wrongs, full_percent(marks(tables)))


def _plain(sentence: str) -> str:
    return sentence.replace("\N{NO-BREAK SPACE}", " ").strip()


def marks(tables: frames.Tables) -> trust.Marks:
    """Counts the marks in the figures of a page, as the page does. `tables` are judged."""
    drawn = []
    for name, rows in figures.page_rows(tables).items():
        module = figures.modules()[name]
        shown = selection.drawable(module, tables) if rows is None else rows
        drawn.append(claims.marks_of(module, shown))
    return trust.marks(tables, drawn)


def full_percent(counted: trust.Marks) -> float | None:
    """Share of marks that are drawn full; None without marks."""
    if not counted.total:
        return None
    return 100 * (counted.total - counted.hollow) / counted.total


def estimate(folder: Path) -> str:
    """Predicted ÷ actual time of the runs after the first ten of a sweep in `folder`; empty if there
    are fewer than five."""
    runs = estimates.measured(folder)
    if len(runs) < 1.5 * estimates.SEEN:
        return ""
    return f"{estimates.replay('', '', runs, {}).rest:.2f}"


def wrong(tables: frames.Tables, lacks: frozenset[str]) -> list[str]:
    """Descriptions of rows that contradict themselves, on a device without units for the formats
    `lacks`.

    `compute_bound` is wrong above 100 % MFU, in an emulated format, or by a disturbed ceiling.
    `emulated_format` is wrong for a format that the device supports. Advice to lower the precision
    is wrong if a lower precision was slower beyond both intervals. MFU above 100 % needs a flag. No
    matmul may exceed its measured ceiling, and no run may fail.
    """
    profile = frames.own_or_recorded(tables["profile"])
    matmul = frames.own_or_recorded(tables["matmul"])
    ceilings = tables["ceilings"].set_index("ceiling")
    shaky = set(
        ceilings.index[ceilings["disturbed_replicates"] >= ceilings["replicates"].fillna(1)]
    )
    is_emulated = profile["effective_precision"].isin(lacks)
    is_compute_bound = profile["verdict"] == "compute_bound"
    is_emulated_format = profile["verdict"] == "emulated_format"
    is_above_peak = profile["mfu_percent"] > 100
    masks = {
        "compute_bound above 100 % MFU": is_compute_bound & is_above_peak,
        "compute_bound in a format that the device emulates": is_compute_bound & is_emulated,
        "compute_bound by a ceiling that was disturbed": is_compute_bound
        & profile["effective_precision"].isin(shaky),
        "emulated_format, of a format that the device has": is_emulated_format & ~is_emulated,
        "above 100 % MFU without a flag": is_above_peak & ~_flagged(profile, "above_peak"),
        "under_used, though a quota held it back": (profile["verdict"] == "under_used")
        & _flagged(profile, "held_back"),
        "failed": profile["status"].isin(["failed", "incorrect"]),
    }
    lines = []
    for fault, mask in masks.items():
        lines += [f"{run}: {fault}" for run in profile.loc[mask, "run"].map(short)]
    is_above_ceiling = matmul["share_of_measured_percent"] > 100.05  # as tables are rounded
    has_failed = matmul["status"].isin(["failed", "incorrect"])
    for run in matmul.loc[is_above_ceiling, "run"].map(short):
        lines.append(f"{run}: above 100 % of the measured ceiling")
    return lines + [f"{run}: failed" for run in matmul.loc[has_failed, "run"].map(short)]


def _flagged(rows: pd.DataFrame, key: str) -> pd.Series:
    return rows["verdict_flags"].fillna("").str.contains(f'"{key}"', regex=False)


COLUMNS = (
    "machine",
    "minutes",
    "rows",
    "doubtful",
    "not measured",
    "MFU ≤",
    "matmuls ≤",
    "marks full",
    "first sentence",
    "wrong",
    "estimate ÷ truth",
    "the page begins",
)


def attempted(machine: Machine, experiment: str) -> Page:
    """Sweeps once. If a command fails, the page says so and is wrong."""
    try:
        return swept(machine, experiment)
    except subprocess.CalledProcessError as error:
        reason = f"the command ended with {error.returncode}"
        return Page({"the page begins": reason}, [reason])


def summed(pages: Sequence[Page]) -> str:
    """Sentence on the pages that sweeps have written: how many begin with a true sentence, and the
    least share of full marks. Empty without pages."""
    written = [page for page in pages if page.first]
    if not written:
        return ""
    true = sum(page.first == first_sentence.TRUE for page in written)
    said = f"first sentence true in {true} of {len(written)}"
    full = [page.full for page in written if page.full is not None]
    if not full:
        return said
    return f"{said}; marks full {math.floor(min(full))} % at least"


def chosen(text: str) -> list[str]:
    """Machines of a comma-separated list. Raises ArgumentTypeError with the choices for an unknown
    name."""
    names = text.split(",")
    for name in names:
        if name not in MACHINES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(MACHINES)}")
    return names


def times(text: str) -> int:
    """A number of sweeps, 1 at least. Raises ValueError for others."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row per sweep as soon as it is measured, after the table everything that is wrong,
    and a sum. Returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", type=chosen, default=list(MACHINES), metavar="NAME,…", help=", ".join(MACHINES)
    )
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="miniature")
    parser.add_argument(
        "--times", type=times, default=1, metavar="N", help="sweeps on each machine, a row each"
    )
    parser.add_argument("--markdown", action="store_true", help="as a table of Markdown")
    options = parser.parse_args(arguments)
    print(f"{trivial.machine()}; experiment={options.experiment}\n", flush=True)
    print(f"| {' | '.join(COLUMNS)} |", flush=True)
    if options.markdown:
        print(f"| {' | '.join(['---'] * len(COLUMNS))} |", flush=True)
    lines, pages = [], []
    for name in options.only:
        machine = MACHINES[name]
        missing = machine.missing()
        if missing:
            print(Page({"the page begins": missing}, []).line(machine.title), flush=True)
            continue
        for _ in range(options.times):
            page = attempted(machine, options.experiment)
            pages.append(page)
            lines += [f"{name}: {line}" for line in page.wrongs]
            print(page.line(machine.title), flush=True)
    print("", *lines, *filter(None, [summed(pages)]), sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
