"""Never two runs on one device: by locks of the real client, on pretend devices."""

import errno
import fcntl
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.processes import HANGS_S
from support.said import refused

from mfulab.lab.runtime import client, devices
from mfulab.lab.runtime.devices import (
    GPUS,
    JOBS,
    LOCKS,
    VISIBLE,
    claim,
    holder,
    lock_path,
    open_lock,
)
from mfulab.lab.runtime.processes import WORKFLOW

# Stands for a measurement: notes the device and when it had it, once so many others have begun.
SCRIPT = """
import json, os, sys, time
from pathlib import Path
folder = Path(sys.argv[2]).parent
began = time.monotonic()
(folder / "began").touch()
together = int(os.environ.get("MFULAB_TEST_TOGETHER", "1"))
while len(list(folder.parent.glob("*/began"))) < together and time.monotonic() < began + 60:
    time.sleep(0.02)
time.sleep(0.2)
with Path(os.environ["MFULAB_TEST_TOLD"]).open("a") as file:
    file.write(json.dumps([os.environ.get("CUDA_VISIBLE_DEVICES"), began, time.monotonic()]) + "\\n")
(folder / "row.csv").touch()
"""
TOGETHER = "MFULAB_TEST_TOGETHER"


def measure(
    folder: Path, device: str | None, count: int, **environment: str
) -> list[tuple[str | None, float, float]]:
    """Runs `count` at once; (device seen, start, end) of each, in the order of their starts."""
    script, told = folder / "script.py", folder / "told"
    script.write_text(SCRIPT)
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in (client.SOCKET, GPUS, VISIBLE, *JOBS)
    }
    processes = []
    for number in range(count):
        config = (
            folder / "results" / "nvidia-pretend" / "bench_matmul" / str(number) / "config.json"
        )
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps({"device": {"type": device}} if device else {}))
        command = [
            sys.executable,
            "-S",
            "-E",
            client.__file__,
            str(script),
            "--config",
            str(config),
        ]
        processes.append(
            subprocess.Popen(
                command, env=inherited | environment | {"MFULAB_TEST_TOLD": str(told)}, cwd=folder
            )
        )
    assert [process.wait(HANGS_S) for process in processes] == [0] * count
    spans = [json.loads(line) for line in told.read_text().splitlines()]
    return sorted(
        ((device, began, ended) for device, began, ended in spans), key=lambda span: span[1]
    )


def overlaps(spans: list[tuple[str | None, float, float]]) -> bool:
    return any(later[1] < earlier[2] for earlier, later in itertools.pairwise(spans))


def test_runs_share_the_gpus_one_each(tmp_path: Path) -> None:
    gpus = "nvidia-pretend:GPU-a,nvidia-other:GPU-x,nvidia-pretend:GPU-b"
    spans = measure(tmp_path, "cuda", 6, **{GPUS: gpus, TOGETHER: "2"})
    assert {device for device, _, _ in spans} == {"GPU-a", "GPU-b"}  # not the one of another kind
    assert overlaps(spans)  # both at a time
    for gpu in ("GPU-a", "GPU-b"):
        assert not overlaps([span for span in spans if span[0] == gpu])


def test_runs_one_after_another_measure_the_same_gpu(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert (
            measure(folder, "cuda", 1, **{GPUS: "nvidia-pretend:GPU-c,nvidia-pretend:GPU-d"})[0][0]
            == "GPU-c"
        )


def test_a_job_of_a_cluster_shares_out_what_it_was_given(tmp_path: Path) -> None:
    spans = measure(
        tmp_path,
        "cuda",
        4,
        **{VISIBLE: "0,1", "SLURM_JOB_ID": f"test-{os.getpid()}", TOGETHER: "2"},
    )
    assert {device for device, _, _ in spans} == {"0", "1"}
    for gpu in ("0", "1"):
        assert not overlaps([span for span in spans if span[0] == gpu])


def test_the_same_number_in_two_jobs_is_not_the_same_device(tmp_path: Path) -> None:
    environment = {VISIBLE: "0"}
    config = str(tmp_path / "results/nvidia-pretend/bench_matmul/run/config.json")
    with (
        claim("cuda", config, environment | {"SLURM_JOB_ID": f"one-{os.getpid()}"}) as first,
        claim("cuda", config, environment | {"SLURM_JOB_ID": f"two-{os.getpid()}"}) as second,
    ):
        assert first[VISIBLE] == second[VISIBLE] == "0"


def test_measurements_of_the_cpu_never_overlap(tmp_path: Path) -> None:
    spans = measure(tmp_path, "cpu", 3)
    assert not overlaps(spans)
    assert {device for device, _, _ in spans} == {None}


def test_counting_waits_for_no_device(tmp_path: Path) -> None:
    assert overlaps(measure(tmp_path, None, 3, **{TOGETHER: "3"}))


def test_where_no_gpu_is_known_a_run_sees_what_it_would_see_anyway() -> None:
    with claim(
        "cuda", "results/nvidia-pretend/bench_matmul/run/config.json", {"HOME": "/"}
    ) as environment:
        assert environment == {"HOME": "/"}


@pytest.mark.parametrize("name", ["MIG-GPU-5/7/0", "GPU-1"])
def test_any_name_of_a_device_can_be_locked(name: str) -> None:
    with claim(
        "cuda", "results/nvidia-pretend/a/b/config.json", {GPUS: f"nvidia-pretend:{name}"}
    ) as environment:
        assert environment[VISIBLE] == name


def test_a_job_of_several_processes_holds_as_many_gpus_or_all_there_are(tmp_path: Path) -> None:
    config = str(tmp_path / "results/nvidia-pretend/profile_step/run/config.json")
    environment = {
        GPUS: ",".join(f"nvidia-pretend:GPU-{name}" for name in "klm"),
        LOCKS: str(tmp_path),
    }
    with (
        claim("cuda", config, environment, 2) as pair,
        claim("cuda", config, environment) as one,
    ):
        assert (pair[VISIBLE], one[VISIBLE]) == ("GPU-k,GPU-l", "GPU-m")
    with claim("cuda", config, environment, 8) as everything:
        assert everything[VISIBLE] == "GPU-k,GPU-l,GPU-m"


def test_a_job_that_waits_for_a_second_gpu_holds_none_meanwhile(tmp_path: Path) -> None:
    config = str(tmp_path / "results/nvidia-pretend/profile_step/run/config.json")
    environment = {GPUS: "nvidia-pretend:GPU-n,nvidia-pretend:GPU-o", LOCKS: str(tmp_path)}

    def both() -> None:
        with claim("cuda", config, environment, 2) as pair:
            got.append(pair[VISIBLE])

    got: list[str] = []
    waiting = threading.Thread(target=both)
    with claim("cuda", config, environment):
        waiting.start()
        time.sleep(0.05)
        with claim("cuda", config, environment) as other:
            assert (other[VISIBLE], got) == ("GPU-o", [])
    waiting.join(HANGS_S)
    assert got == ["GPU-n,GPU-o"]


def test_a_run_that_waits_for_a_device_ends_with_its_workflow(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    config = tmp_path / "results/nvidia-pretend/bench_matmul/run/config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"device": {"type": "cuda"}}))
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in (client.SOCKET, VISIBLE, *JOBS)
    }
    workflow = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    environment = inherited | {GPUS: "nvidia-pretend:GPU-f", WORKFLOW: str(workflow.pid)}
    command = [sys.executable, "-S", "-E", client.__file__, "script.py", "--config", str(config)]
    with claim("cuda", str(config), environment):
        waiting = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert waiting.stdout is not None
        assert waiting.stdout.readline().startswith(
            "waiting for GPU-f: another run measures there ("
        )
        workflow.kill()  # and nobody has waited for it yet
        assert waiting.wait(HANGS_S) == client.ABANDONED
    workflow.communicate()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_lock_is_named_with_a_remedy(tmp_path: Path, kind: str) -> None:
    path = Path(lock_path("cpu", {LOCKS: str(tmp_path)}))
    {
        "link": lambda: path.symlink_to("/etc/passwd"),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
    }[kind]()
    with refused(RuntimeError, "no_lock", variable="MFULAB_LOCKS"):
        open_lock(str(path))


def test_all_users_of_a_machine_share_a_lock(tmp_path: Path) -> None:
    path = lock_path("cpu", {LOCKS: str(tmp_path)})
    os.close(open_lock(path))
    # read by all, whatever the umask; written by nobody
    assert Path(path).stat().st_mode & 0o777 == 0o444
    assert path == lock_path("cpu", {LOCKS: str(tmp_path), "USER": "another"})


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_another_users_lock_is_waited_for(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == 0 and len(folder.parts) > 2:
            folder.chmod(0o755)
    path = lock_path("cpu", {LOCKS: str(tmp_path)})
    os.close(open_lock(path))
    other = os.fork()
    if other == 0:
        os.setuid(65534)
        try:
            open_lock(path)
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(other, 0)[1] == 0


def test_who_holds_a_device_for_ever_is_named_and_costs_rows_not_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "LONGEST_WAIT_S", 0.2)
    environment = {LOCKS: str(tmp_path)}
    path = lock_path("cpu", environment)
    assert devices.holder(path) == ""
    hold = (
        "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX);"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        said = devices.holder(path)
        assert f"{path} is held by " in said
        assert str(other.pid) in said or "another process" in said
        with (
            pytest.raises(devices.HeldError, match=r"waited .* held by .*MFULAB_LOCKS"),
            claim("cpu", "x", environment),
        ):
            pass
        folder = tmp_path / "results/cpu-1c/environment/all"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"device": {"type": "cpu"}}))
        wrote = []
        monkeypatch.setattr(client, "_fail", lambda command, failure: wrote.append(failure) or 0)
        monkeypatch.setenv(LOCKS, str(tmp_path))
        monkeypatch.chdir(tmp_path)
        assert client.main(["run.py", "environment", "--config", str(folder / "config.json")]) == 0
        assert "is held by " in wrote[0]
        other.communicate()
    assert devices.holder(path) == ""


CLAIM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from mfulab.lab.runtime import client, devices
environment = json.loads(sys.argv[2])
with devices.claim("cuda", "results/a-gpu/bench_matmul/a/config.json", environment, 2) as claimed:
    print(json.dumps({name: claimed[name] for name in claimed if name not in environment}))
"""


@pytest.mark.parametrize(
    ("shown", "gets"),
    [
        ({}, {VISIBLE: "GPU-p,GPU-q"}),
        (
            {f"GPU-{name}": {"HIP_VISIBLE_DEVICES": name} for name in "pq"},
            {"HIP_VISIBLE_DEVICES": "p,q"},
        ),
        ({"GPU-p": {}, "GPU-q": {}}, {}),
    ],
)
def test_a_client_shows_a_run_its_gpus_with_the_standard_library_alone(shown, gets, tmp_path):
    environment = {
        GPUS: "a-gpu:GPU-p,a-gpu:GPU-q",
        LOCKS: str(tmp_path),
        devices.SHOWN: json.dumps(shown),
    }
    source = Path(devices.__file__).parents[3]
    command = [sys.executable, "-S", "-E", "-c", CLAIM, str(source), json.dumps(environment)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert json.loads(done.stdout or "null") == gets, done.stderr


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize(
    "ask",
    [
        lambda environment: claim("cpu", "config.json", environment).__enter__(),
        lambda environment: holder(lock_path("cpu", environment)),
    ],
    ids=["claim", "holder"],
)
def test_a_file_system_without_locks_is_one_sentence(tmp_path, monkeypatch, ask, number):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    environment = {LOCKS: str(tmp_path)}
    with pytest.raises(RuntimeError, match=rf"^{tmp_path}.*{LOCKS}"):
        ask(environment)
