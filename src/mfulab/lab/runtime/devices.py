"""Devices of a run: free GPUs, which hide the others, or the CPU alone, by locks that hold between
workflows too."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from mfulab.core.json_text import parse_json
from mfulab.core.printing import say
from mfulab.core.said import Numbers, Said, SaidError, as_told
from mfulab.device import is_gpu
from mfulab.lab.runtime.processes import check_workflow

# JSON: of each of these UUIDs the variable that shows it alone; a client imports no vendor
SHOWN = "MFULAB_SHOWN"
GPUS = "MFULAB_GPUS"  # SLUG:UUID,…: the devices of this machine, where the workflow runs on it
VISIBLE = "CUDA_VISIBLE_DEVICES"
# A scheduler's jobs have devices of their own, which may bear the same numbers as another job's.
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
# the folder of the locks, the same for all who share the machine; /tmp where it is not set
LOCKS = "MFULAB_LOCKS"
POLL_S = 0.1
LONGEST_WAIT_S = 3600  # for devices that others hold all the time


class LockError(SaidError, RuntimeError):
    """A device's lock cannot be used, for the reason that its sentence gives."""


class HeldError(RuntimeError):
    """Others held the devices of a run for LONGEST_WAIT_S."""


Environment = dict[str, str]


@contextmanager
def claim(
    device: str | None, config_path: str, environment: Environment, count: int = 1
) -> Iterator[Environment]:
    """Holds `count` devices of a type, or all there are, waiting for them; yields the environment.
    Raises HeldError."""
    candidates = _candidates(device, config_path, environment)
    if not candidates:
        yield environment
        return
    is_told = False
    end = time.monotonic() + LONGEST_WAIT_S
    count = min(count, len(candidates))
    paths = {candidate: lock_path(candidate, environment) for candidate in candidates}
    while True:
        with ExitStack() as locks:
            held = _held(paths, count, locks)
            if len(held) == count:
                yield environment | _shown(held, environment) if is_gpu(device) else environment
                return
        if time.monotonic() > end:
            holders = "; ".join(holder(path) or path for path in paths.values())
            raise HeldError(f"waited {LONGEST_WAIT_S / 60:g} min for a device: {holders}")
        if not is_told:
            wanted = ""
            if count > 1:
                wanted = f"{count} of "
            names = " or ".join(candidates)
            places = ", ".join(paths.values())
            say(f"waiting for {wanted}{names}: another run measures there ({places})", flush=True)
            is_told = True
        # Two that wait for several must not keep step.
        time.sleep(POLL_S * (1 + os.getpid() % 97 / 97))
        check_workflow(environment)


def _candidates(device: str | None, config_path: str, environment: Environment) -> list[str]:
    """Devices that a run may use: of GPUs those of the hardware that its folder,
    results/<hardware>/…, names."""
    if device == "cpu":
        return ["cpu"]
    if not is_gpu(device):
        return []
    hardware = os.path.abspath(config_path).split(os.sep)[-4]
    pairs = []
    for entry in environment.get(GPUS, "").split(","):
        if entry:
            pairs.append(entry.split(":", 1))
    if pairs:
        found = []
        for slug, uuid in pairs:
            if slug == hardware:
                found.append(uuid)
        return found
    return list(filter(None, environment.get(VISIBLE, "").split(",")))


def _held(paths: Mapping[str, str], count: int, locks: ExitStack) -> list[str]:
    """Devices of which `locks` now holds the lock, `count` at most. Always in the same order, so
    that runs which do not compete all measure the same device. The caller wants all or none: two
    runs that each held a part of what they want would wait for one another."""
    held: list[str] = []
    for device, path in paths.items():
        descriptor = open_lock(path)
        locks.callback(os.close, descriptor)
        if _is_taken(descriptor, path, fcntl.LOCK_EX):
            held.append(device)
        if len(held) == count:
            break
    return held


def _shown(held: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that show a run the devices that it holds: CUDA's, where the workflow did not
    name another."""
    named = parse_json(environment.get(SHOWN) or "{}")
    values = dict[str, list[str]]()
    for uuid in held:
        for variable, value in named.get(uuid, {VISIBLE: uuid}).items():
            values.setdefault(variable, []).append(value)
    return {variable: ",".join(devices) for variable, devices in values.items()}


def lock_path(device: str, environment: Mapping[str, str]) -> str:
    """The file of a device's lock: one name a machine for all users, as all of them share the
    device."""
    scope = next((environment[key] for key in JOBS if key in environment), "local")
    name = f"mfulab-{scope}-{device}.lock".replace("/", "-")
    return f"{environment.get(LOCKS) or '/tmp'}/{name}"


def holder(path: str) -> str:
    """Says who holds a lock, and what to do about it; empty where nobody does."""
    descriptor = open_lock(path)
    try:
        if _is_taken(descriptor, path, fcntl.LOCK_SH):
            return ""
        status = os.fstat(descriptor)
        who = "another process"
        with suppress(OSError), open("/proc/locks", encoding="ascii") as file:
            device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
            holders = []
            for fields in map(str.split, file):
                if fields[1] == "FLOCK" and fields[5] == device:
                    holders.append(fields[4])
            if holders and int(holders[0]) > 0:
                who = f"process {holders[0]}"
        return (
            f"{path} is held by {who}; runs wait for its end. {LOCKS} names another folder of locks"
        )
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int, path: str, kind: int) -> bool:
    """True where the lock is this process's now, false where another has it. Raises LockError on
    a file system that keeps no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        told: Numbers = {"file": path, "error": error.strerror, "variable": LOCKS}
        raise LockError(Said("no_locks_kept", told)) from error
    return True


def open_lock(path: str) -> int:
    """The descriptor of a lock of all users, never written to. Raises LockError where another
    thing stands there."""
    try:
        with suppress(FileExistsError):
            descriptor = os.open(
                path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444
            )
            os.fchmod(descriptor, 0o444)  # whatever the umask: another user's run must see it
            return descriptor
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        why = Said("no_regular_file")
    except OSError as error:
        why = Said("a_link")
        if error.errno != errno.ELOOP:
            why = as_told(error.strerror or str(error))
    raise LockError(Said("no_lock", {"file": path, "why": why, "variable": LOCKS}))
