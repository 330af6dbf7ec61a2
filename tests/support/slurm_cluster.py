"""A real SLURM cluster of one node with two fake GPUs for tests, from Debian's packages: slurmctld,
slurmd and munged.

Its config must be /etc/slurm/slurm.conf, because jobs do not see SLURM_CONF. An existing foreign
config is left alone. A machine therefore has only one such cluster: concurrent test runs wait, and
leftovers of a killed test run are ended first.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
from support.processes import is_running, until

CONFIG = Path("/etc/slurm")
FILES = (CONFIG / "slurm.conf", CONFIG / "gres.conf")
OURS = "# mfulab's test cluster\n"
STATE = Path("/tmp/mfulab-slurm")
LOCK = Path("/tmp/mfulab-slurm-tests.lock")
LOCK_S = 600  # maximum wait for another test run
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scancel")
# device file of each GPU, which SLURM needs, by its value in CUDA_VISIBLE_DEVICES
GPUS = {"0": "/dev/null", "1": "/dev/zero"}


def why_not() -> str | None:
    """Reason why no cluster can be started here; None if one can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"SLURM is not installed: no {', '.join(missing)} (apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "needs root, to write /etc/slurm/slurm.conf and to run slurmd"
    for file in FILES:
        with suppress(FileNotFoundError):  # a cluster of these tests may be ending
            if not file.read_text().startswith(OURS):
                return f"{file} belongs to another cluster"
    return None


class Cluster:
    """Test cluster. `kill_slurmd` and `start_slurmd` are for tests of failing nodes."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._undo = ExitStack()

    def start(self) -> None:
        """Starts the daemons and waits until the node is idle. Cleans up if that fails."""
        with ExitStack() as undo:  # undoes in reverse order, even if a step raises
            undo.enter_context(_alone())
            _end_leftovers()
            undo.callback(_remove_files)
            _make_files()
            if not _munge_answers():
                self._spawn(
                    "munged", "munged", "--foreground", "--force", user="munge", group="munge"
                )
                undo.callback(self._end, "munged")
                self._until(_munge_answers)
            self._spawn("slurmctld", "slurmctld", "-D")
            undo.callback(self._end, "slurmctld")
            undo.callback(self._end, "slurmd")
            self.start_slurmd()
            undo.callback(self._cancel_jobs)
            self._undo = undo.pop_all()

    def stop(self) -> None:
        """Ends jobs and daemons and removes the config."""
        self._undo.close()

    def start_slurmd(self) -> None:
        """Starts the node's daemon and waits until it is ready for jobs."""
        self._spawn("slurmd", "slurmd", "-D", "-N", "localhost")
        self._until(lambda: self.state() in ("idle", "mixed", "allocated"))

    def kill_slurmd(self) -> None:
        """Kills the node's daemon."""
        self._end("slurmd", signal.SIGKILL)

    def lose_node(self) -> None:
        """Kills the node's daemon, the daemons of its jobs and all processes of the jobs at once,
        and lets SLURM know that the node is down."""
        processes = list[psutil.Process]()
        for step in psutil.process_iter(["name"]):
            if step.info["name"] == "slurmstepd":
                with suppress(psutil.NoSuchProcess):
                    processes += [step, *step.children(recursive=True)]
        self.kill_slurmd()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        down = ["scontrol", "update", "nodename=localhost", "state=down", "reason=lost"]
        subprocess.run(down, check=True)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Suspends the scheduler inside the `with` block: it accepts calls, but does not answer."""
        self._processes["slurmctld"].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._processes["slurmctld"].send_signal(signal.SIGCONT)

    def state(self) -> str:
        """State of the node according to sinfo."""
        shown = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], capture_output=True, text=True
        ).stdout.strip()
        return shown.rstrip("*~#!%$@^-")

    def jobs(self, state: str) -> list[str]:
        """Ids of jobs in `state`, such as RUNNING."""
        shown = subprocess.run(
            ["squeue", "-h", "-o", "%i", "-t", state], capture_output=True, text=True
        ).stdout
        return shown.split()

    def is_answering(self) -> bool:
        """True if the scheduler answers, as it does a while after `silent`."""
        return subprocess.run(["scontrol", "ping"], capture_output=True).returncode == 0

    def last_job(self) -> int:
        """Highest id of a job so far, also of ended ones."""
        shown = subprocess.run(
            ["squeue", "-h", "-o", "%A", "-t", "all"], capture_output=True, text=True, check=True
        ).stdout
        return max(map(int, shown.split()))

    def _cancel_jobs(self) -> None:
        subprocess.run(["scancel", "--user", "root"], capture_output=True)
        self._until(lambda: not self.jobs("RUNNING"))

    def _spawn(self, name: str, *command: str, **options: str) -> None:
        with (STATE / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **options
            )
        (STATE / f"{name}.pid").write_text(str(process.pid))
        self._processes[name] = process

    def _end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self._processes.pop(name, None)
        if process:
            process.send_signal(number)
            try:
                process.wait(20)
            finally:
                process.kill()

    def _until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition of this cluster. Raises RuntimeError if one of its daemons has
        ended, because another cluster might answer."""

        def holds() -> object:
            ended = [
                name for name, process in self._processes.items() if process.poll() is not None
            ]
            if ended:
                output = (STATE / f"{ended[0]}.out").read_text()[-2000:]
                raise RuntimeError(f"the test cluster's {ended[0]} has ended: {output}")
            return condition()

        until(holds, 30, f"the test cluster does not answer: {STATE}/*.log say why")


@contextmanager
def _alone() -> Iterator[None]:
    """Holds the lock on this machine's only test cluster. Raises TimeoutError if another test run
    keeps it."""
    with LOCK.open("a") as file:

        def is_free() -> bool:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            return False

        until(
            is_free,
            LOCK_S,
            f"for {LOCK_S} s another test run has kept the test cluster: {LOCK} names its process",
        )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _end_leftovers() -> None:
    """Ends jobs and daemons of a killed test run, and removes its files."""
    for name in ("slurmctld", "slurmd", "munged"):
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):
            pid = int((STATE / f"{name}.pid").read_text())
            if Path(f"/proc/{pid}/comm").read_text().strip() != name:
                continue  # the process id was reused
            if name == "slurmctld":
                subprocess.run(["scancel", "--user", "root"], capture_output=True)
                time.sleep(2)  # so that the node can still end them
            os.kill(pid, signal.SIGTERM)
            until(
                partial(_has_ended, pid), 20, f"{name} of a test run that was killed does not end"
            )
    shutil.rmtree(STATE, ignore_errors=True)


def _has_ended(pid: int) -> bool:
    return not is_running(pid)


def _make_files() -> None:
    for folder in (STATE / "state", STATE / "spool", CONFIG):
        folder.mkdir(parents=True, exist_ok=True)
    gpus = "".join(f"NodeName=localhost Name=gpu File={file}\n" for file in GPUS.values())
    for file, content in zip(FILES, (_config(), gpus), strict=True):
        partial_file = file.with_suffix(".partial")  # `why_not` beside this never sees half of it
        partial_file.write_text(OURS + content)
        partial_file.rename(file)
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")


def _remove_files() -> None:
    for file in FILES:
        file.unlink(missing_ok=True)
    shutil.rmtree(STATE, ignore_errors=True)


def _munge_answers() -> bool:
    socket_file = Path("/run/munge/munge.socket.2")
    return (
        socket_file.exists()
        and subprocess.run(["munge", "-n"], capture_output=True).returncode == 0
    )


def _config() -> str:
    host = socket.gethostname().split(".")[0]
    return f"""
ClusterName=mfulab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
StateSaveLocation={STATE}/state
SlurmdSpoolDir={STATE}/spool
SlurmctldPidFile={STATE}/slurmctld.pid
SlurmdPidFile={STATE}/slurmd.pid
SlurmctldLogFile={STATE}/slurmctld.log
SlurmdLogFile={STATE}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
DefMemPerNode=1000
ReturnToService=2
MinJobAge=600
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 NodeHostName={host} CPUs=16 RealMemory=64000 Gres=gpu:2
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""
