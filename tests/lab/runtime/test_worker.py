"""The warm worker for real: each run alone, the same row with and without it, nothing left."""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import AF_UNIX, send_fds, socketpair
from socket import socket as unix_socket

import pytest
from support.processes import HANGS_S, is_running, pid_in, until
from support.said import keys
from support.slow import few
from support.workflow_copy import fake_steps

from mfulab.core.language import verdicts
from mfulab.core.said import LONGEST_CELL
from mfulab.device.identity import hardware_slug
from mfulab.lab.runtime import client, endings, lifetime, processes

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the worker is for Linux: elsewhere there is none"
)

# A step whose measurement is told by the kernel's name; everything around it is the real app and
# runner.
MEASURE = """
import ctypes, os, random, signal, subprocess, time
from mfulab.core.errors import ConfigurationError
from mfulab.measurements.bench_matmul import MatmulRow

def measure(config, folder):
    print("measuring", config.kernel.name)
    match config.kernel.name:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "quiet_exit":
            sys.exit(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        case "memory":
            bytearray(1 << 60)
        case "refuse":
            raise ConfigurationError("not here")
        case "hang":
            (folder / "pid").write_text(str(os.getpid()))
            time.sleep(600)
        case "leave":
            child = subprocess.Popen(["sleep", "600"])
            (folder / "pid").write_text(str(child.pid))
        case "argparse":
            import argparse
            argparse.ArgumentParser().parse_args(["--unknown"])
        case "usage":
            os._exit(2)
        case "elsewhere":
            os.chdir("/")
        case "daemon":
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            (folder / "pid").write_text(str(child.pid))
        case "chatty":
            for _ in range(100):
                print("x" * (1 << 20))
        case "long":
            raise ValueError("y" * 300_000)
        case "late":
            import atexit
            atexit.register(os._exit, 9)
        case "pollute":
            os.environ["MFULAB_TEST"] = "left behind"
            os.chdir("/")
            sys.modules["json"].left_behind = True
            random.seed(1)
        case "greedy":
            data = [bytearray(os.urandom(1 << 20)) for _ in range(1000)]
    import json
    state = {
        "left": os.environ.get("MFULAB_TEST"), "folder": os.getcwd(), "json": hasattr(json, "left_behind"),
        "path": sys.path[:2], "arguments": sys.argv, "threads": os.environ.get("OMP_NUM_THREADS"),
        "standard_input": sys.stdin.read(), "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "environment": sorted(key for key in os.environ if key not in ("LC_CTYPE", "_")),
    }
    row = MatmulRow(kernel=config.kernel.name, size=config.size, precision="fp32", time_s=0.5, m=8)
    return Measured(row, [state])
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    lifetime.start()
    yield os.environ[client.SOCKET]
    lifetime.stop()


def test_a_worker_that_is_slow_to_start_costs_time_and_no_run(monkeypatch, tmp_path):
    path = os.path.relpath(tmp_path / "socket")  # short, as a socket's path must be
    monkeypatch.setenv(client.SOCKET, path)
    monkeypatch.setattr(client, "WORKER_START_S", 0.05)
    with unix_socket(AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def begin():
            time.sleep(0.2)
            with listener.accept()[0] as workers:
                workers.sendall(client.STARTED + b"0\n")

        beginning = threading.Thread(target=begin)
        beginning.start()
        assert client._in_worker(["a run"], {}, limit=60) == 0
        beginning.join()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    fake_steps(tmp_path, MEASURE, ("bench_matmul",))
    return tmp_path


def planned(tree: Path, kernel: str, time_limit_s: float = 600) -> list[str]:
    """Writes the config of a run without a row; returns the client's arguments for it."""
    folder = folder_of(tree, kernel)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("row.csv", "samples.csv", "pid"):
        (folder / name).unlink(missing_ok=True)
    config = {"kernel": {"name": kernel, "_target_": "somewhere.Kernel"}, "size": "8"}
    config |= {"precision": {"name": "fp32", "dtype": "float32"}, "device": {"type": "cpu"}}
    config |= {"timing": {"time_limit_s": time_limit_s}}
    (folder / "config.json").write_text(json.dumps(config))
    path = (folder / "config.json").relative_to(tree)
    return ["scripts/run.py", "bench_matmul", "--config", str(path)]


def start(
    tree: Path, kernel: str, socket: str | None, time_limit_s: float = 600
) -> subprocess.Popen[str]:
    arguments = planned(tree, kernel, time_limit_s)
    environment = {key: value for key, value in os.environ.items() if key != client.SOCKET}
    if socket:
        environment[client.SOCKET] = socket
    environment["OMP_NUM_THREADS"] = "1"  # as Snakemake sets it
    command = [sys.executable, "-S", "-E", client.__file__, *arguments]
    with (folder_of(tree, kernel) / "log").open("w") as log:
        files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        return subprocess.Popen(command, cwd=tree, env=environment, text=True, **files)


def folder_of(tree: Path, kernel: str) -> Path:
    return tree / "results" / hardware_slug("cpu") / "bench_matmul" / f"kernel={kernel}"


def row_of(tree: Path, kernel: str) -> dict[str, str]:
    with (folder_of(tree, kernel) / "row.csv").open(newline="") as file:
        return next(csv.DictReader(file))


def run(tree: Path, kernel: str, socket: str | None, **options: float) -> dict[str, str]:
    assert start(tree, kernel, socket, **options).wait(HANGS_S) == 0, (
        folder_of(tree, kernel) / "log"
    ).read_text()
    return row_of(tree, kernel)


@pytest.fixture(params=few(["worker", "directly"]))
def way(request: pytest.FixtureRequest) -> str | None:
    """The socket of a worker, and None: whatever holds must hold both ways."""
    return request.getfixturevalue("worker") if request.param == "worker" else None


@pytest.mark.parametrize(
    ("kernel", "status", "message"),
    few(
        [
            ("fine", "ok", ""),
            ("segfault", "failed", "the run's process was ended by SIGSEGV"),
            ("interrupt", "failed", "the run's process was ended by SIGINT: interrupted"),
            ("exit", "failed", "the run's process ended with exit status 3 and wrote no row"),
            ("quiet_exit", "failed", "SystemExit: 0"),
            ("late", "ok", ""),  # what goes wrong after the row costs nothing
            ("memory", "out_of_memory", "MemoryError: "),
            ("kill", "failed", "the run's process was ended by SIGKILL"),
            ("argparse", "failed", "SystemExit: 2"),
            ("usage", "failed", "the run's process ended with exit status 2 and wrote no row"),
            ("elsewhere", "ok", ""),
        ],
        7,
    ),
)
def test_a_run_costs_its_own_row_alone(
    tree: Path, way: str | None, kernel: str, status: str, message: str
) -> None:
    row = run(tree, kernel, way)
    assert (row["status"], verdicts.message(row["message"])) == (status, message)
    assert row["kernel"] == kernel
    assert row["time_s"] == ("0.5" if status == "ok" else "")
    if kernel == "interrupt":
        assert "Traceback" not in (folder_of(tree, kernel) / "log").read_text()
    if kernel == "segfault":
        assert "Segmentation fault" in (folder_of(tree, kernel) / "log").read_text()
    assert way is None or run(tree, "after", way)["status"] == "ok"


def test_a_child_measures_as_a_client_does_and_writes_to_its_log_alone(
    tree: Path, way: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tree)
    monkeypatch.setenv(client.SOCKET, way or "")
    before = dict(os.environ)
    for kernel, status in (("fine", "ok"), ("kill", "failed")):
        log = folder_of(tree, kernel) / "log"
        assert client.in_child(planned(tree, kernel), str(log)) == 0
        assert row_of(tree, kernel)["status"] == status
        assert f"measuring {kernel}" in log.read_text()
    absent = [*planned(tree, "fine")[:-1], "absent/config.json"]
    assert client.in_child(absent, str(tree / "log")) == client.ABANDONED
    assert "absent/config.json" in (tree / "log").read_text()
    assert dict(os.environ) == before
    assert capfd.readouterr() == ("", "")


def test_a_child_ends_with_its_parent(tree: Path, way: str | None) -> None:
    code = f"from mfulab.lab.runtime import client; client.in_child({planned(tree, 'hang')}, 'log')"
    environment = {**os.environ, client.SOCKET: way or ""}
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tree, env=environment)
    pid = pid_in(folder_of(tree, "hang") / "pid")
    parent.kill()
    parent.wait()
    until(lambda: not is_running(pid))
    assert not (folder_of(tree, "hang") / "row.csv").exists()


def test_rows_and_state_are_the_same_with_and_without_a_worker(tree: Path, worker: str) -> None:
    rows, states = [], []
    for socket in (worker, None):
        row = run(tree, "fine", socket)
        unlike = ("started_at", "process_s", "commit")
        rows.append({key: value for key, value in row.items() if key not in unlike})
        with (folder_of(tree, "fine") / "samples.csv").open(newline="") as file:
            state = next(csv.DictReader(file))
        environment = set(json.loads(state.pop("environment"))) - {client.SOCKET}
        states.append({**state, "environment": environment})
    assert rows[0] == rows[1]
    assert states[0] == states[1]
    assert states[0]["threads"] == ""  # what Snakemake set is not what is measured with
    assert states[0]["standard_input"] == ""


def test_a_run_inherits_nothing_of_the_one_before(tree: Path, worker: str) -> None:
    run(tree, "pollute", worker)
    run(tree, "fine", worker)
    with (folder_of(tree, "fine") / "samples.csv").open(newline="") as file:
        state = next(csv.DictReader(file))
    assert (state["left"], state["json"], state["folder"]) == ("", "False", str(tree))


def test_the_worker_is_what_ran_it(tree: Path, worker: str) -> None:
    process = start(tree, "hang", worker)
    pid = pid_in(folder_of(tree, "hang") / "pid")
    assert "mfulab.lab.runtime.server" in Path(f"/proc/{pid}/cmdline").read_text()
    process.kill()
    process.wait()
    until(lambda: not is_running(pid))


def test_a_run_out_of_time_is_ended_and_becomes_a_row(
    tree: Path, way: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = (tree / "client.py").write_text  # the same client with less grace
    source = Path(client.__file__).read_text().replace("GRACE_S = 10 ", "GRACE_S = 0.2 ")
    short(
        source.replace(
            "sys.path[0] = ", f"sys.path[0] = {str(Path(client.__file__).parents[3])!r} or "
        )
    )
    monkeypatch.setattr(client, "__file__", str(tree / "client.py"))
    row = run(tree, "hang", way, time_limit_s=2)
    found = (row["status"], verdicts.message(row["message"]))
    assert found == ("failed", "took longer than timing.time_limit_s=2")
    assert float(row["process_s"]) >= 2
    written = datetime.fromtimestamp((folder_of(tree, "hang") / "row.csv").stat().st_mtime, UTC)
    assert datetime.fromisoformat(row["started_at"]) <= written - timedelta(seconds=2)
    pid = folder_of(tree, "hang") / "pid"
    # A slow machine may end it before it measures.
    assert not (pid.exists() and is_running(pid_in(pid)))


def test_its_log_can_be_read_while_it_runs(tree: Path, way: str | None) -> None:
    process = start(tree, "hang", way)
    until(lambda: "measuring hang" in (folder_of(tree, "hang") / "log").read_text())
    assert process.poll() is None
    process.terminate()
    process.wait()


def test_a_client_that_ends_takes_its_run_with_it(tree: Path, way: str | None) -> None:
    process = start(tree, "hang", way)
    pid = pid_in(folder_of(tree, "hang") / "pid")
    process.send_signal(signal.SIGINT)
    assert process.wait(HANGS_S) == -signal.SIGINT
    until(lambda: not is_running(pid))
    assert not (folder_of(tree, "hang") / "row.csv").exists()


@pytest.mark.parametrize("kernel", ["leave", "daemon"])
def test_what_a_run_leaves_running_is_ended(tree: Path, way: str | None, kernel: str) -> None:
    assert run(tree, kernel, way)["status"] == "ok"
    until(lambda: not is_running(pid_in(folder_of(tree, kernel) / "pid")))


def test_a_log_and_a_message_have_bounds(tree: Path, way: str | None) -> None:
    assert run(tree, "chatty", way)["status"] == "ok"
    log = folder_of(tree, "chatty") / "log"
    assert log.stat().st_size < 2 * client.LONGEST_LOG
    assert "cut here" in log.read_text()
    row = run(tree, "long", way)
    assert verdicts.message(row["message"]).startswith("ValueError: yyy")
    assert len(verdicts.message(row["message"])) <= LONGEST_CELL


def test_a_killed_client_ends_its_run_and_its_shell_writes_it(tree: Path, way: str | None) -> None:
    process = start(tree, "hang", way)
    pid = pid_in(folder_of(tree, "hang") / "pid")
    process.kill()
    process.wait()
    until(lambda: not is_running(pid))
    config = (folder_of(tree, "hang") / "config.json").relative_to(tree)
    script = ("scripts/run.py", "bench_matmul", "--config", str(config))
    command = [sys.executable, client.__file__, client.KILLED, *script]
    environment = {key: value for key, value in os.environ.items() if key != client.SOCKET}
    assert subprocess.run(command, cwd=tree, env=environment, check=False).returncode == 0
    row = row_of(tree, "hang")
    assert row["status"] == "failed"
    assert keys(row["message"]) == {"supervisor_killed"}


@pytest.mark.parametrize(
    "config", ['{"model": {}}', '{"device": {"type": "cpu"}}'], ids=["count", "ceiling"]
)
def test_a_run_without_timing_has_the_sweeps_time_limit(tmp_path: Path, config: str) -> None:
    (tmp_path / "script.py").write_text(
        "import sys, time, pathlib\n"
        "if '--failed' in sys.argv:\n    pathlib.Path('told').write_text(sys.argv[-3])\nelse:\n    time.sleep(60)\n"
    )
    (tmp_path / "config.json").write_text(config)
    source = Path(client.__file__).read_text().replace("GRACE_S = 10 ", "GRACE_S = 0.2 ")
    root = repr(str(Path(client.__file__).parents[3]))
    (tmp_path / "client.py").write_text(
        source.replace("sys.path[0] = ", f"sys.path[0] = {root} or ")
    )
    environment = {key: value for key, value in os.environ.items() if key != client.SOCKET} | {
        client.TIME_LIMIT: "0.5"
    }
    command = [sys.executable, "client.py", "script.py", "--config", "config.json"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=HANGS_S)
    assert (tmp_path / "told").read_text() == endings.ending(endings.LATE, limit_s=0.5)


def test_a_refused_run_leaves_no_row(tree: Path, way: str | None) -> None:
    process = start(tree, "fine", way)
    process.wait(HANGS_S)
    config = folder_of(tree, "fine") / "config.json"
    elsewhere = tree / "results/nvidia-not-here/bench_matmul/kernel=fine/config.json"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text(config.read_text())
    environment = {key: value for key, value in os.environ.items() if key != client.SOCKET}
    environment |= {client.SOCKET: way} if way else {}
    script = [client.__file__, "scripts/run.py", "bench_matmul", "--config", str(elsewhere)]
    command = [sys.executable, *script]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == client.REFUSED
    assert "hardware=nvidia-not-here: this run was planned for it, but here is" in done.stderr
    assert not (elsewhere.parent / "row.csv").exists()


def _cgroup() -> Path | None:
    """A control group that may use 200 MB, where this user may make one."""
    for root, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(root, f"mfulab-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            (group / limit).write_text(str(200 << 20))
            return group
        group.rmdir()
    return None


def test_the_kernels_out_of_memory_killer_costs_one_row(tree: Path) -> None:
    group = _cgroup()
    if group is None:
        pytest.skip("no control group can be made here: needs root")
    try:
        process = start(tree, "greedy", None)
        (group / "cgroup.procs").write_text(str(process.pid))
        assert process.wait(HANGS_S) == 0
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
    row = row_of(tree, "greedy")
    assert row["status"] == "out_of_memory"
    assert keys(row["message"]) == {"killed_for_memory"}


WORKFLOW = """
import os, psutil, sys
from mfulab.lab.runtime import lifetime
lifetime.start()
print(os.environ["MFULAB_WORKER"], psutil.Process().children()[0].pid, flush=True)
sys.stdin.readline()
lifetime.stop()
"""


@pytest.fixture
def workflow() -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """A process that stands for Snakemake; its worker's socket and pid."""
    environment = {key: value for key, value in os.environ.items() if key != client.SOCKET}
    command = [sys.executable, "-c", WORKFLOW]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    socket, pid = process.stdout.readline().split()
    yield process, socket, int(pid)
    process.kill()
    process.wait()


@pytest.mark.parametrize("end", few(["SIGKILL", "normally"]))
def test_the_worker_and_its_runs_end_with_the_workflow(
    tree: Path, workflow: tuple[subprocess.Popen[str], str, int], end: str
) -> None:
    process, socket, worker = workflow
    waiting = start(tree, "hang", socket)
    pid = pid_in(folder_of(tree, "hang") / "pid")
    if end == "normally":
        process.communicate("end\n")
    else:
        process.kill()
    assert waiting.wait(HANGS_S) == client.ABANDONED
    until(lambda: not is_running(pid) and not is_running(worker))
    until(lambda: not Path(socket).parent.exists())
    # nobody waits for it; it is measured again
    assert not (folder_of(tree, "hang") / "row.csv").exists()


def test_a_run_without_a_worker_ends_with_its_workflow_too(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setenv(processes.WORKFLOW, str(workflow.pid))
    running = start(tree, "hang", None)
    pid = pid_in(folder_of(tree, "hang") / "pid")
    workflow.communicate(b"end\n")
    assert running.wait(HANGS_S) == client.ABANDONED
    assert not is_running(pid)
    assert not (folder_of(tree, "hang") / "row.csv").exists()


def test_runs_go_on_directly_after_the_worker_was_killed(
    tree: Path, workflow: tuple[subprocess.Popen[str], str, int]
) -> None:
    _, socket, worker = workflow
    running = start(tree, "hang", socket)
    pid = pid_in(folder_of(tree, "hang") / "pid")
    os.kill(worker, signal.SIGKILL)
    until(lambda: not is_running(worker))
    assert is_running(pid)  # what it had forked lives on
    running.terminate()
    running.wait()
    until(lambda: not is_running(pid))
    assert run(tree, "fine", socket)["status"] == "ok"


@pytest.mark.parametrize("folder", ["/proc", "x" * 120], ids=["unwritable", "long"])
def test_without_a_folder_for_its_socket_runs_go_on_without_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    """Such as where /tmp is read-only."""
    monkeypatch.delenv(client.SOCKET, raising=False)
    monkeypatch.setattr(lifetime.os, "access", lambda *_: False)
    (tmp_path / ("x" * 120)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    with lifetime.worker("report") as socket:
        assert socket == ""
    said = capsys.readouterr().err
    assert said.startswith("mfulab: ")
    assert said.count("\n") == 1
    assert list((tmp_path / ("x" * 120)).iterdir()) == []


# A module whose import loses an interrupt, as one written in C may.
DEAF = """
import pathlib, time

pathlib.Path("reached").touch()
try:
    time.sleep(600)
except KeyboardInterrupt:
    raise ImportError("initialisation failed")
"""


@pytest.mark.parametrize("work", few(["report", "rows deaf"]))
def test_a_worker_that_is_interrupted_alone_says_so_in_a_line(tmp_path: Path, work: str) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    ours, theirs = socketpair()
    server = [sys.executable, "-m", "mfulab.lab.runtime.server"]
    with ours, theirs, (tmp_path / "said").open("w") as said:
        served = subprocess.Popen(
            [*server, str(theirs.fileno()), str(tmp_path / "x"), work],
            stdin=subprocess.PIPE,
            stderr=said,
            pass_fds=[theirs.fileno()],
            cwd=tmp_path,
        )
        imported = Path(f"/proc/{served.pid}/maps")
        reached = tmp_path / "reached"
        until(lambda: reached.exists() or (work == "report" and "pandas" in imported.read_text()))
        served.send_signal(signal.SIGINT)
        assert served.wait(HANGS_S) == 130
        served.communicate()
    found = (tmp_path / "said").read_text()
    assert found == "mfulab: the worker was interrupted; runs go on without it\n"


HOSTILE_REQUESTS = (b"[1, 2\n", b"\xff\xfe\n", b"[" * 200_000 + b"\n", b"9" * 9999 + b"\n")


def test_what_is_no_request_is_one_sentence_and_the_worker_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mfulab.lab.runtime.server"]
    path = str(tmp_path / "socket")
    with unix_socket(AF_UNIX) as listener, (tmp_path / "said").open("w") as said:
        listener.bind(path)
        listener.listen(16)
        words = [str(listener.fileno()), str(tmp_path / "x"), "report"]
        served = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.PIPE,
            stderr=said,
            pass_fds=[listener.fileno()],
        )
        for request in HOSTILE_REQUESTS:
            with unix_socket(AF_UNIX) as asks:
                asks.connect(path)
                send_fds(asks, [request[:1]], [said.fileno(), said.fileno()])
                asks.sendall(request[1:])
                while asks.recv(100):
                    pass  # its keeper ends
        assert served.poll() is None
        served.communicate()
    lines = (tmp_path / "said").read_text().splitlines()
    assert len(lines) == len(HOSTILE_REQUESTS)
    assert all(line.startswith("mfulab: the worker: ") for line in lines)


@pytest.mark.slow
def test_a_run_whose_keeper_was_killed_is_made_again_directly(
    tree: Path, workflow: tuple[subprocess.Popen[str], str, int]
) -> None:
    _, socket, _ = workflow
    process = start(tree, "hang", socket)
    first = pid_in(folder_of(tree, "hang") / "pid")
    (folder_of(tree, "hang") / "pid").unlink()
    os.kill(
        int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL
    )
    second = pid_in(folder_of(tree, "hang") / "pid")
    assert second != first
    until(lambda: not is_running(first))
    process.terminate()
    process.wait()
    until(lambda: not is_running(second))


def test_a_client_imports_nothing_that_would_double_its_start():
    heavy = {"dataclasses", "pathlib", "inspect", "hashlib", "difflib", "mfulab.core.errors"}
    code = f"import sys, runpy; runpy.run_path({client.__file__!r}); print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True
    )
    imported = set(answer.stdout.split())
    assert "mfulab.lab.runtime.budget" in imported
    assert not imported & heavy
