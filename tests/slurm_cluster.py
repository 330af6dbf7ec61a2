"""A SLURM of one node with two pretend GPUs, of Debian's packages, for tests: slurmctld, slurmd and munged for real.

Its config has to be /etc/slurm/slurm.conf, as jobs see no SLURM_CONF; one that is already there is left alone.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

CONFIG = Path("/etc/slurm")
OURS = "# mfulab's test cluster\n"
STATE = Path("/tmp/mfulab-slurm")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scancel")
GPUS = {"0": "/dev/null", "1": "/dev/zero"}  # a device file each, as SLURM wants; what CUDA_VISIBLE_DEVICES then says


def why_not() -> str | None:
    """Why no cluster can be made here; None where it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"SLURM is not installed: no {', '.join(missing)} (apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "needs root, to write /etc/slurm/slurm.conf and to run slurmd"
    config = CONFIG / "slurm.conf"
    if config.exists() and not config.read_text().startswith(OURS):
        return f"{config} belongs to another cluster"
    return None


class Cluster:
    """Starts with `start`, ends with `stop`; `kill_slurmd` and `start_slurmd` are for tests of failing nodes."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Starts the daemons and waits until the node is idle."""
        shutil.rmtree(STATE, ignore_errors=True)
        for folder in ("state", "spool"):
            (STATE / folder).mkdir(parents=True)
        CONFIG.mkdir(exist_ok=True)
        (CONFIG / "slurm.conf").write_text(OURS + _config())
        (CONFIG / "gres.conf").write_text(
            OURS + "".join(f"NodeName=localhost Name=gpu File={file}\n" for file in GPUS.values())
        )
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        if (
            not Path("/run/munge/munge.socket.2").exists()
            or subprocess.run(["munge", "-n"], capture_output=True).returncode
        ):
            self._spawn("munged", "runuser", "-u", "munge", "--", "munged", "--foreground", "--force")
            _until(lambda: subprocess.run(["munge", "-n"], capture_output=True).returncode == 0)
        self._spawn("slurmctld", "slurmctld", "-D")
        self.start_slurmd()

    def start_slurmd(self) -> None:
        """Starts the node and waits until it is ready for jobs."""
        self._spawn("slurmd", "slurmd", "-D", "-N", "localhost")
        _until(lambda: self.state() in ("idle", "mixed", "allocated"))

    def kill_slurmd(self) -> None:
        """The node's daemon dies."""
        self._end("slurmd", signal.SIGKILL)

    def state(self) -> str:
        """The node's state as sinfo says it."""
        shown = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout.strip()
        return shown.rstrip("*~#!%$@^-")

    def jobs(self, state: str) -> list[str]:
        """Ids of jobs in `state`, such as RUNNING."""
        shown = subprocess.run(["squeue", "-h", "-o", "%i", "-t", state], capture_output=True, text=True).stdout
        return shown.split()

    def stop(self) -> None:
        """Ends jobs and daemons and takes the config away."""
        subprocess.run(["scancel", "--user", "root"], capture_output=True)
        _until(lambda: not self.jobs("RUNNING"))
        for name in ("slurmd", "slurmctld", "munged"):
            self._end(name, signal.SIGTERM)
        for name in ("slurm.conf", "gres.conf"):
            (CONFIG / name).unlink()
        shutil.rmtree(STATE, ignore_errors=True)

    def _spawn(self, name: str, *command: str) -> None:
        log = (STATE / f"{name}.out").open("ab")
        self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _end(self, name: str, number: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process:
            process.send_signal(number)
            process.wait(20)


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


def _until(condition: object, timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            raise TimeoutError(f"the test cluster does not answer: {STATE}/*.log say why")
        time.sleep(0.1)
