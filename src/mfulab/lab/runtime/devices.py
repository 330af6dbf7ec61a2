"""Devices of a run: free GPUs, with all others hidden, or the CPU alone. Locks hold between
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
from mfulab.device import is_gpu
from mfulab.lab.runtime.processes import check_workflow

# JSON: for each UUID the variables that make only this device visible. A client must not import
# the vendors' modules.
SHOWN = "MFULAB_SHOWN"
GPUS = "MFULAB_GPUS"  # SLUG:UUID,…: GPUs of this machine, if the workflow runs on it
VISIBLE = "CUDA_VISIBLE_DEVICES"
# A scheduler's jobs have their own devices, which may have the same numbers as those of other jobs.
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
# Folder of the locks, common to all users of the machine; /tmp by default.
LOCKS = "MFULAB_LOCKS"
POLL_S = 0.1
LONGEST_WAIT_S = 3600  # for devices that other runs hold without a break


class LockError(RuntimeError):
    """A device's lock cannot be used; the message, a `Said`, says why. `Said` is imported where it
    is raised: each run starts a client, which imports this module."""

    @property
    def said(self) -> object:
        """The message as its key and numbers."""
        return self.args[0]


class HeldError(RuntimeError):
    """Other runs held the devices of a run for LONGEST_WAIT_S."""


Environment = dict[str, str]


@contextmanager
def claim(
    device: str | None, config_path: str, environment: Environment, count: int = 1
) -> Iterator[Environment]:
    """Waits for `count` free devices of a type, or all if there are fewer, and locks them for the
    block. Yields the environment that makes only these visible. Raises HeldError."""
    candidates = _candidates(device, config_path, environment)
    if not candidates:
        yield environment
        return
    is_reported = False
    end = time.monotonic() + LONGEST_WAIT_S
    count = min(count, len(candidates))
    paths = {candidate: lock_path(candidate, environment) for candidate in candidates}
    while True:
        with ExitStack() as locks:
            held = _lock(paths, count, locks)
            if len(held) == count:
                if is_gpu(device):
                    environment = environment | _visibility(held, environment)
                yield environment
                return
        if time.monotonic() > end:
            holders = "; ".join(holder(path) or path for path in paths.values())
            raise HeldError(f"waited {LONGEST_WAIT_S / 60:g} min for a device: {holders}")
        if not is_reported:
            wanted = f"{count} of " if count > 1 else ""
            names = " or ".join(candidates)
            files = ", ".join(paths.values())
            say(f"waiting for {wanted}{names}: another run measures there ({files})", flush=True)
            is_reported = True
        # Differs between processes, as two that wait for several devices must not poll in step.
        time.sleep(POLL_S * (1 + os.getpid() % 97 / 97))
        check_workflow(environment)


def _candidates(device: str | None, config_path: str, environment: Environment) -> list[str]:
    """Devices that a run may use. GPUs must be of the hardware in the path of its folder,
    results/<hardware>/…."""
    if device == "cpu":
        return ["cpu"]
    if not is_gpu(device):
        return []
    hardware = os.path.abspath(config_path).split(os.sep)[-4]
    entries = list(filter(None, environment.get(GPUS, "").split(",")))
    if not entries:
        return list(filter(None, environment.get(VISIBLE, "").split(",")))
    found = []
    for entry in entries:
        slug, uuid = entry.split(":", 1)
        if slug == hardware:
            found.append(uuid)
    return found


def _lock(paths: Mapping[str, str], count: int, locks: ExitStack) -> list[str]:
    """Locks at most `count` free devices and returns them; `locks` releases them. Tries them in a
    fixed order, so that runs which do not compete all measure the same device. If there are too
    few, the caller must release all: two runs that each held some would wait for one another."""
    held: list[str] = []
    for device, path in paths.items():
        descriptor = open_lock(path)
        locks.callback(os.close, descriptor)
        if _try_lock(descriptor, path, fcntl.LOCK_EX):
            held.append(device)
        if len(held) == count:
            break
    return held


def _visibility(held: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that make only these devices visible; CUDA's variable, unless `MFULAB_SHOWN` has
    others."""
    by_uuid = parse_json(environment.get(SHOWN) or "{}")
    values = dict[str, list[str]]()
    for uuid in held:
        for variable, value in by_uuid.get(uuid, {VISIBLE: uuid}).items():
            values.setdefault(variable, []).append(value)
    return {variable: ",".join(devices) for variable, devices in values.items()}


def lock_path(device: str, environment: Mapping[str, str]) -> str:
    """File of a device's lock: the same for all users of a machine, as they share the device."""
    scope = next((environment[key] for key in JOBS if key in environment), "local")
    name = f"mfulab-{scope}-{device}.lock".replace("/", "-")
    return f"{environment.get(LOCKS) or '/tmp'}/{name}"


def holder(path: str) -> str:
    """Says which process holds a lock, and what to do about it; "" if none does."""
    descriptor = open_lock(path)
    try:
        if _try_lock(descriptor, path, fcntl.LOCK_SH):
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


def _try_lock(descriptor: int, path: str, kind: int) -> bool:
    """True if this process has got the lock, False if another holds it. Raises LockError if the
    file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        from mfulab.core.said import Said

        raise LockError(
            Said("no_locks_kept", file=path, error=error.strerror, variable=LOCKS)
        ) from error
    return True


def open_lock(path: str) -> int:
    """Opens or creates the file of a lock, readable by all users and never written to; returns its
    descriptor. Raises LockError if the path is not a regular file."""
    try:
        with suppress(FileExistsError):
            descriptor = os.open(
                path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444
            )
            os.fchmod(descriptor, 0o444)  # other users must read it, whatever the umask
            return descriptor
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        refusal = None
    except OSError as error:
        refusal = error
    raise _unusable(path, refusal)


def _unusable(path: str, refusal: OSError | None) -> LockError:
    """Builds the error for a path that cannot be a lock: the system refused it, or it is not a
    regular file."""
    from mfulab.core.said import Said, as_told

    why = Said("no_regular_file")
    if refusal is not None:
        is_link = refusal.errno == errno.ELOOP
        why = Said("a_link") if is_link else as_told(refusal.strerror or str(refusal))
    return LockError(Said("no_lock", file=path, why=why, variable=LOCKS))
