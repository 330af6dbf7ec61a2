"""Faults that a sweep must survive: its rows complete, none measured twice, nothing left running.

`make faults` does each fault as often as docs/reliability.md says, at random moments; the tests do
a part of them once. The workflow, planning, client, worker, runner and tables are the real ones;
only what is measured is a pause.
"""

import base64
import csv
import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import platformdirs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.processes import is_running, until
from support.said import numbers, parts
from support.slow import few
from support.workflow_copy import copy_workflow, fake_steps

from mfulab.core.files import read_csv
from mfulab.lab.runtime.client import SOCKET

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]
TIMES = int(os.environ.get("MFULAB_FAULTS", "1"))
SEED = int(os.environ.get("MFULAB_FAULTS_SEED", "1"))
MARK = "MFULAB_TEST_MARK"
MEASURE = """
import json, os, time

def measure(config, folder):
    time.sleep(PAUSE)
    with open(Path(__file__).parents[1] / "told", "a") as file:
        file.write(json.dumps(str(folder)) + "\\n")
    hostile = Path(__file__).parents[1] / "hostile.py"
    if hostile.exists():
        exec(hostile.read_text(), {"config": config, "folder": folder})
    return Measured(MEASUREMENTS[step].row(process_s=1.0))
"""
EXPERIMENT = """# @package _global_
steps: [count_flops]
model: {name: linear, _target_: torch.nn.Linear, input_shape: [4]}
hydra: {sweeper: {params: {batch_size: "1,2,3,4,5,6"}}}
"""
RUNS = 6


@pytest.fixture
def tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """The workflow with counts that pause, in a folder of the parameter's name; what a failing test
    left is ended."""
    mark, folder = str(uuid4()), tmp_path / getattr(request, "param", "")
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv(MARK, mark)
    # runs directly: the worker imports torch, and has tests of its own
    monkeypatch.setenv(SOCKET, "")
    copy_workflow(folder)
    make_script(folder, 0.3)
    (folder / "config/experiment/faults.yaml").write_text(EXPERIMENT)
    yield folder
    for process in processes(mark):
        os.kill(process, signal.SIGKILL)


def make_script(tree: Path, pause_s: float) -> None:
    fake_steps(tree, MEASURE.replace("PAUSE", str(pause_s)), ("count_flops", "environment"))


def command(*options: str, target: str = "rows", **config: str) -> list[str]:
    words = [
        f"{key}={value}"
        for key, value in {"experiment": "faults", "device": "cpu", **config}.items()
    ]
    return [sys.executable, "-m", "snakemake", "--cores=2", *options, target, "--config", *words]


def start(tree: Path, *options: str, **config: str) -> subprocess.Popen[str]:
    with (tree / "output").open("w") as output:
        return subprocess.Popen(
            command(*options, **config),
            cwd=tree,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )


def finish(tree: Path, *options: str, status: int = 0, **config: str) -> str:
    """A sweep to its end, and what it said."""
    ended = start(tree, *options, **config).wait(180)
    said = (tree / "output").read_text()
    assert ended == status, said
    assert "Traceback" not in said
    return said


def processes(mark: str, words: str = "") -> list[int]:
    """Processes of this test, by the mark in their environment, whose command holds `words`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()
            is_meant = words.encode() in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if (
            is_marked
            and is_meant
            and is_running(int(folder.name))
            and int(folder.name) != os.getpid()
        ):
            found.append(int(folder.name))
    return found


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def rows(tree: Path) -> dict[str, str]:
    """The status of each row that is whole."""
    found = {}
    for path in tree.glob("results/count_flops/*/row.csv"):
        with path.open(newline="") as file:
            [row] = csv.DictReader(file)
        found[path.parent.name] = row["status"]
    return found


def measured(tree: Path) -> Counter[str]:
    path = tree / "told"
    found = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return Counter(folder for folder in found if "count_flops" in folder)


def assert_complete(tree: Path, status: str = "ok") -> None:
    """Every run has its row, and nothing of this test runs any more or lies around half-written."""
    assert Counter(rows(tree).values()) == {status: RUNS}
    until(lambda: not processes(os.environ[MARK]), 20, "something was left running")
    assert not list(tree.glob("results/**/*.partial"))


KILLED = {
    "client": "client.py\0scripts/run.py\0count",
    "run": "faulthandler\0scripts/run.py\0count",
    "worker": "mfulab.lab.runtime.server",
}


SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("time_", range(TIMES))
@pytest.mark.parametrize("number", few(SIGNALS), ids=lambda number: number.name)
@pytest.mark.parametrize("who", few(["everything", "snakemake"]))
def test_a_sweep_that_was_ended_goes_on_with_the_same_command(
    tree: Path, who: str, number: int, time_: int
) -> None:
    """And no run whose row was there is measured again."""
    chance = random.Random(f"{SEED} {who} {number} {time_}")
    sweep = start(tree)
    until(lambda: processes(os.environ[MARK], KILLED["client"]) or sweep.poll() is not None, 60)
    time.sleep(chance.uniform(0, 2.5))
    victims = [sweep.pid] if who == "snakemake" else processes(os.environ[MARK])
    for process in victims:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
    sweep.wait(60)
    until(lambda: not processes(os.environ[MARK]), 20, "something was left running")
    before = {name: path.stat().st_mtime_ns for name in rows(tree) for path in [row_of(tree, name)]}
    finish(tree)
    assert_complete(tree)
    assert {name: row_of(tree, name).stat().st_mtime_ns for name in before} == before
    # what was under way on two cores is measured again
    assert sum(measured(tree).values()) <= RUNS + 2


@pytest.mark.slow
def test_an_interrupted_sweep_leaves_a_page_and_says_how_to_go_on(tree: Path) -> None:
    """By the terminal: everything but what has a session of its own gets the signal."""
    sweep = start(
        tree, "--cores=1", target="report", budget_min="null", overrides="report.rows=all"
    )
    until(lambda: len(rows(tree)) >= 2 or sweep.poll() is not None, 60)
    os.killpg(sweep.pid, signal.SIGINT)
    assert sweep.wait(120) == 1
    said = (tree / "output").read_text()
    assert not any(word in said for word in ("Traceback", "Error", "Failed:")), said
    last = said.splitlines()[-1]
    assert " rows are kept · page: " in last
    words = "experiment=faults device=cpu budget_min=null overrides=report.rows=all"
    assert last.endswith(f"to go on: snakemake --cores 1 report --config {words}")
    page = (tree / "reports/report.html").read_text()
    kept = {name: row_of(tree, name).stat().st_mtime_ns for name in rows(tree)}
    # and the environment
    assert f"{len(kept) + 1} runs measured, {RUNS - len(kept)} still to come." in page
    make_script(tree, 0)
    finish(tree)
    assert_complete(tree)
    assert {name: row_of(tree, name).stat().st_mtime_ns for name in kept} == kept


def shown(tree: Path) -> tuple[set[str], set[str]]:
    """The runs that the page shows, and those of the table that Snakemake keeps."""
    [packed] = re.findall(r'id="data"[^>]*>([^<]+)<', (tree / "reports/report.html").read_text())
    flops = json.loads(gzip.decompress(base64.b64decode(packed)))["tables"]["flops"]
    place = [column["name"] for column in flops["columns"]].index("run")
    words = flops["columns"][place]["dictionary"]
    with (tree / "results/tables/flops.csv").open(newline="") as file:
        return {words[code] for code in flops["values"][place]}, {
            row["run"] for row in csv.DictReader(file)
        }


def runs_of(sizes: str) -> set[str]:
    return {f"model=linear,batch_size={size}" for size in sizes.split(",")}


def killed_with_a_page(tree: Path, number: int, pause_s: float, **config: str) -> None:
    """A sweep that a signal ends `pause_s` after its first row; by SIGINT it leaves a page."""
    sweep = start(tree, "--cores=1", target="report", **config)
    until(lambda: rows(tree).keys() & runs_of(config["batch_size"]) or sweep.poll() is not None, 60)
    time.sleep(pause_s)
    with suppress(ProcessLookupError):
        os.killpg(sweep.pid, number)
    sweep.wait(120)
    until(lambda: not processes(os.environ[MARK]), 20, "something was left running")


@pytest.mark.slow
def test_a_page_is_its_command_s_after_another_was_interrupted(tree: Path) -> None:
    """The page of what there was of another experiment's command is not taken for this one's, nor
    are its tables."""
    one, other = {"batch_size": "1"}, {"batch_size": "5,6,7,8"}
    make_script(tree, 0)
    finish(tree, target="report", **one)
    make_script(tree, 1.5)
    killed_with_a_page(tree, signal.SIGINT, random.Random(SEED).random(), **other)
    make_script(tree, 0)
    said = finish(tree, target="report", **one)
    assert "Nothing to be done" not in said
    assert shown(tree) == (runs_of("1"), runs_of("1"))
    finish(tree, target="report", **one)
    assert shown(tree) == (runs_of("1"), runs_of("1"))


@pytest.mark.slow
def test_a_clock_set_back_between_two_sweeps_costs_nothing(tree: Path) -> None:
    """What the first wrote is an hour from now then, and so are inputs of the next: tables, figures
    and page."""
    make_script(tree, 0)
    finish(tree, target="report", batch_size="1,2")
    for path in (tree / "results").rglob("*"):
        later = path.lstat().st_mtime + 3600
        os.utime(path, (later, later), follow_symlinks=False)
    before = measured(tree)
    said = finish(tree, target="report", batch_size="1,2,3")
    assert "Removing" not in said
    assert shown(tree) == (runs_of("1,2,3"), runs_of("1,2,3"))
    finish(tree, target="report", batch_size="1,2,3")
    assert sum((measured(tree) - before).values()) == 1


ENDS = st.sampled_from([*SIGNALS, None])
COMMANDS = st.tuples(st.sampled_from(["1", "5,6", "1,5"]), ENDS, st.floats(0, 1))


@pytest.mark.slow
@settings(
    max_examples=2 * TIMES,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(commands=st.lists(COMMANDS, min_size=2, max_size=5))
def test_a_page_is_its_command_s_in_any_order_of_commands_ends_and_kills(
    tree: Path, commands: list
) -> None:
    shutil.rmtree(tree / "results", ignore_errors=True)
    for sizes, number, pause_s in commands:
        if number is not None:
            make_script(tree, 0.5)
            killed_with_a_page(tree, number, pause_s, batch_size=sizes)
        make_script(tree, 0)
        for size in (sizes, "1"):
            finish(tree, target="report", batch_size=size)
            assert shown(tree) == (runs_of(size), runs_of(size))


def row_of(tree: Path, name: str) -> Path:
    return tree / "results/count_flops" / name / "row.csv"


@pytest.mark.slow
@pytest.mark.parametrize("time_", range(TIMES))
@pytest.mark.parametrize("who", few(["client", "run", "worker"]))
def test_a_killed_process_costs_its_own_row(
    tree: Path, who: str, time_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has none of its own: what it forked goes on, and later runs do without it."""
    chance = random.Random(f"{SEED} {who} {time_}")
    make_script(tree, 2)
    if who == "worker":
        monkeypatch.delenv(SOCKET)
    sweep = start(tree, batch_size="1,2")
    begun = KILLED["client" if who == "worker" else "run"]
    until(lambda: processes(os.environ[MARK], begun) or sweep.poll() is not None, 60)
    time.sleep(chance.uniform(0, 15 if who == "worker" else 1))  # it imports first
    victims = [
        one
        for one in processes(os.environ[MARK], KILLED[who])
        if who != "worker" or parent(one) == sweep.pid
    ]
    assert len(victims) == 1 or who != "worker" or sweep.poll() is not None
    if victims:
        os.kill(chance.choice(victims), signal.SIGKILL)
    assert sweep.wait(120) == 0, (tree / "output").read_text()
    found = rows(tree)
    assert len(found) == 2
    assert Counter(found.values())["failed"] == (0 if who == "worker" else len(victims[:1]))
    assert who != "worker" or set(measured(tree).values()) == {1}
    until(lambda: not processes(os.environ[MARK]), 20, "something was left running")


HOSTILE = {
    "exits with 2": "import sys; sys.exit(2)",
    "exits at once": "import os; os._exit(2)",
    "kills itself": "import os; os.kill(os.getpid(), 9)",
    "leaves a daemon": "import subprocess; subprocess.Popen(['sleep', '900'], start_new_session=True); 1 / 0",
    "goes elsewhere": "import os; os.chdir('/'); 1 / 0",
    "talks too much": "print('x' * 40_000_000); 1 / 0",
    "says too much": "raise ValueError('y' * 1_000_000)",
    "raises a name that is no text": "raise ValueError('\\\\udcff \\\\x00 \\\\x1b[2J')",
    "closes its output": "import os; os.close(1); os.close(2); 1 / 0",
    "removes its folder": "import shutil; shutil.rmtree(folder); 1 / 0",
    "uses all memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, -1)); bytearray(1 << 40)",
    "fills its folder with links": "(folder / 'row.csv').symlink_to('/etc/passwd'); 1 / 0",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", few(HOSTILE))
def test_whatever_a_model_does_is_a_row(tree: Path, what: str) -> None:
    make_script(tree, 0)
    (tree / "hostile.py").write_text(HOSTILE[what])
    finish(tree, batch_size="1,2")
    [status] = set(rows(tree).values())
    assert status == ("out_of_memory" if what == "uses all memory" else "failed")
    assert len(rows(tree)) == 2
    assert all(path.stat().st_size < 40_000_000 for path in tree.glob("results/count_flops/*/log"))
    until(lambda: not processes(os.environ[MARK]), 20, "something was left running")


def _directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "file").write_text("x")


def _link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/etc/passwd")


BROKEN: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00\x80" * 50),
    "a folder": _directory,
    "a link": _link,
    "another shape": lambda path: path.write_text("[1, 2, [3]]\n"),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", few(BROKEN, 0))
def test_a_broken_file_costs_one_row_at_most_and_is_made_anew(tree: Path, how: str) -> None:
    finish(tree)
    results = tree / "results"
    [plan, *_] = results.glob("*/plan/faults.json")
    remembered = platformdirs.user_cache_path("mfulab") / "plans"
    memory = max(remembered.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in (plan, memory, *(results / "count_flops").glob("*batch_size=1/config.json")):
        BROKEN[how](path)
    for path in (results / "count_flops").glob("*batch_size=2/row.csv"):
        BROKEN[how](path)
    (results / plan.parent.parent.name / "plan/other.json").write_bytes(b"\x80")
    finish(tree, target="results/tables/flops.csv", overrides="report.rows=all")
    assert_complete(tree)
    assert sum(measured(tree).values()) <= RUNS + 2
    problems = read_csv(results / "tables/problems.csv")
    told = [problem["said"] for problem in problems if "other.json" in problem["said"]]
    assert [next(parts(said)).key for said in told] == ["experiment_not_shown"]
    assert numbers(told[0], "no_utf8_text") == {"byte": 0}


@pytest.mark.parametrize(
    ("column", "value"),
    few(
        [
            ("started_at", "2999-01-01T00:00:00+00:00"),
            ("process_s", "abc"),
            ("process_s", "-1"),
            ("process_s", "inf"),
        ],
        0,
    ),
)
def test_an_impossible_cell_is_told_with_its_remedy(tree: Path, column: str, value: str) -> None:
    finish(tree, batch_size="1,2")
    [path, *_] = sorted((tree / "results/count_flops").glob("*/row.csv"))
    with path.open(newline="") as file:
        [row] = csv.DictReader(file)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow({**row, column: value})
    finish(tree, target="results/tables/flops.csv", batch_size="1,2")
    with (tree / "results/tables/flops.csv").open(newline="") as file:
        told = [line for line in csv.DictReader(file) if line["status"] == "failed"]
    [line] = told
    [key] = json.loads(line["message"])
    assert key == "row_unreadable"
    assert str(path.relative_to(tree)) in line["message"]
    assert column in line["message"]


@pytest.mark.slow
def test_two_sweeps_at_once_are_one_after_another(tree: Path) -> None:
    make_script(tree, 1)
    first = start(tree)
    until(lambda: processes(os.environ[MARK], "client.py"), 60)
    refused = finish(tree, status=1, batch_size="7,8")
    assert f"process {first.pid}" in refused
    assert first.wait(120) == 0
    make_script(tree, 0)
    assert_complete(tree)


@pytest.mark.slow
def test_two_checkouts_on_one_results_folder_are_one_after_another(tree: Path) -> None:
    """The second finds every row, and measures none again."""
    other = tree / "other"
    copy_workflow(other)
    for name in ("scripts/run.py", "config/experiment/faults.yaml"):
        shutil.copy(tree / name, other / name)
    (tree / "results").mkdir()
    (other / "results").symlink_to(tree / "results")
    make_script(tree, 1)
    first = start(tree)
    until(lambda: processes(os.environ[MARK], "client.py"), 60)
    assert f"process {first.pid}" in finish(other, status=1)
    assert first.wait(120) == 0
    finish(other)
    assert_complete(tree)
    assert measured(other) == Counter()
    make_script(tree, 0)
    finish(tree)
    assert sum(measured(tree).values()) == RUNS


@pytest.mark.slow
def test_what_a_sweep_is_to_measure_is_not_measured_by_run_beside_it(tree: Path) -> None:
    """Run under way or still to come, each is measured once; a finished one as often as asked."""
    (tree / "hostile.py").write_text(
        "import time\n"
        "while 'count_flops' in str(folder) and not (folder.parents[2] / 'go').exists():\n"
        "    time.sleep(0.1)\n"
    )
    sweep = start(tree, "--cores=1", batch_size="1,2")
    until(lambda: measured(tree) or sweep.poll() is not None, 60)
    for size in "12":
        done = run_alone(tree, size)
        assert done.returncode == 2, done.stdout
        assert f"process {sweep.pid}" in done.stderr
    (tree / "go").touch()
    assert sweep.wait(120) == 0
    assert [*measured(tree).values()] == [1, 1]
    assert run_alone(tree, "1").returncode == 0
    assert sorted(measured(tree).values()) == [1, 2]


def run_alone(tree: Path, size: str) -> subprocess.CompletedProcess[str]:
    """A count of the experiment, by `mfulab run`."""
    words = ["run", "count_flops", "experiment=faults", "device=cpu", f"batch_size={size}"]
    return subprocess.run(
        [sys.executable, "-m", "mfulab", *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,  # where it measures, it waits like the sweep
    )


@pytest.mark.parametrize(
    "name", few(["../../x", "/etc/passwd", "a/b", "", ".", "a\nb", "$(touch x)", "-rf", "x" * 300])
)
def test_hostile_names_are_refused_or_stay_in_their_folder(tree: Path, name: str) -> None:
    said = finish(tree, "-n", status=1, overrides=f"'model.name=\"{name}\"'")
    assert "mfulab: " in said
    assert not (tree / "x").exists()
    assert not list(tree.parent.glob("x"))


@pytest.fixture
def small_disk(tree: Path) -> Iterator[Path]:
    """The project on a disk of 16 MB."""
    disk = tree.parent / f"{tree.name}-disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "mfulab", str(disk)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs root and the right to mount a disk in memory")
    try:
        copy_workflow(disk)
        for name in ("scripts/run.py", "config/experiment/faults.yaml"):
            (disk / name).write_text((tree / name).read_text())
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_named_loses_nothing_and_the_sweep_goes_on(small_disk: Path) -> None:
    finish(small_disk, batch_size="1,2")
    before = rows(small_disk)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command(), cwd=small_disk, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "the disk is full. Free some space" in done.stdout + done.stderr
    assert rows(small_disk) == before
    filler.unlink()
    finish(small_disk)
    assert_complete(small_disk)


def test_a_checkout_that_cannot_be_written_is_one_sentence(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command("-n"), cwd=small_disk, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"mfulab: {small_disk}: cannot be written" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_home_that_is_read_alone_is_no_obstacle(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/proc/no-home")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    finish(tree, batch_size="1,2", target="results/tables/flops.csv")
    assert set(rows(tree).values()) == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize("tree", ["a $HOME b"], indirect=True)
def test_a_checkout_that_moves_another_time_zone_and_no_git_cost_nothing(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "sh", "which"):  # the last is what SLURM's plugin asks
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))
    make_script(tree, 0)
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")  # 24 hours before the next
    finish(tree, batch_size="1")
    [(name, status)] = rows(tree).items()
    before = row_of(tree, name).stat().st_mtime_ns
    monkeypatch.setenv("TZ", "Pacific/Honolulu")
    tree = tree.rename(tmp_path / "moved")
    finish(tree, batch_size="1,2")
    assert [*rows(tree).values()] == [status, "ok"] == ["ok", "ok"]
    assert row_of(tree, name).stat().st_mtime_ns == before
    with row_of(tree, name).open(newline="") as file:
        assert next(csv.DictReader(file))["commit"] == "", "there was no git to ask"
