"""Executes one planned run, from its config to its row. Whatever happens becomes a row, which is
written completely or not at all."""

import importlib
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from mfulab.core.configs import StepConfig
from mfulab.core.errors import ConfigurationError, UnsupportedError, is_out_of_memory
from mfulab.core.files import (
    UnreadableError,
    read_csv,
    read_json,
    write_csv,
    write_json,
    write_text,
)
from mfulab.core.language import verdicts
from mfulab.core.measurement import Measured
from mfulab.core.parts import drop_none, pick_all
from mfulab.core.printing import say
from mfulab.core.replicates import STANDS_IN, halved, previous
from mfulab.core.rows import NOT_MEASURED, Row, Status
from mfulab.core.said import (
    Said,
    as_told,
    cell_of,
    joined,
    of_cell,
    of_source,
    said_by,
    with_sentence,
)
from mfulab.device import system
from mfulab.device.interruptions import circumstances, heard
from mfulab.lab.runtime import endings
from mfulab.lab.runtime.client import HALVED, INSTEAD_OF, REFUSED
from mfulab.measurements.registry import MEASUREMENTS
from mfulab.timing.statistics import relative_half_width

FEWEST_REPLICATES = 3  # to be called precise, as two may agree by chance
# Bounds of the memory that shifts a run's addresses: 64 MB of pages, and some bytes of the heap.
MOST_PAGES = 1 << 14
MOST_BYTES = 1 << 16
OUT_OF_MEMORY: Status = "out_of_memory"
# Status of a run that was ended from outside, by the key of its ending; `failed` for all others.
ENDED: Mapping[str, Status] = {
    endings.LEFT_OUT: NOT_MEASURED,
    endings.STOPPED: NOT_MEASURED,
    endings.MEMORY: OUT_OF_MEMORY,
}


def main(step: str) -> None:
    """Measures the run of `--config FILE`. With `--failed ENDING --after SECONDS`, writes the row
    of one that was ended so. If a profiled step runs out of memory, leaves a config with half its
    batch. The client measures that with `--instead-of FILE`, which names the first config."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own model may be a module in this folder
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    config = Path(options["--config"])
    ended_by = options.get("--failed")
    try:
        if ended_by:
            took_s = float(options.get("--after") or 0) or None
            row = record_failure(step, config, ended_by, took_s)
        else:
            row = measure(step, config)
        if row.status == "ok" and INSTEAD_OF in options:
            _stand_in(config, Path(options[INSTEAD_OF]))
    except ConfigurationError as error:
        say(f"mfulab: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        say("interrupted", file=sys.stderr, flush=True)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # the parent sees which signal ended it
    words = [row.status, row.run, verdicts.message(row.message)]
    say(": ".join(filter(None, words)))
    if row.status == OUT_OF_MEMORY and not ended_by and _halve(step, config):
        sys.exit(HALVED)


def _halve(step: str, path: Path) -> bool:
    """Writes a config with half the batch for the first process of a profiled step, unless that run
    is planned anyway. Returns True if written."""
    content = read_json(path)
    if step != "profile_step" or content.get("replicate", 1) > 1:
        return False
    half = path.parent.with_name(halved(path.parent.name)) / "config.json"
    mark = half.with_name(STANDS_IN)
    is_planned = half.exists() and not mark.exists()
    if half == path or is_planned:
        return False
    write_json(half, content | {"batch_size": content["batch_size"] // 2}, indent=1)
    write_text(mark, "")
    return True


def _stand_in(path: Path, larger: Path) -> None:
    """Completes a run that was measured in place of one with a larger batch: counts its FLOPs, and
    adds a sentence to the larger one's row."""
    from mfulab.device import identity

    content = read_json(path)
    larger_batch = read_json(larger)["batch_size"]
    count = path.absolute().parents[3] / "count_flops" / path.parent.name / "config.json"
    fields = MEASUREMENTS["count_flops"].config.model_fields.keys() & content
    write_json(count, pick_all(content, sorted(fields)), indent=1)
    measure("count_flops", count)
    size = identity.memory_bytes(identity.resolve(content["device"]["type"]))
    numbers = {"asked": larger_batch, "measured": content["batch_size"]}
    smaller = Said("smaller_batch", numbers)
    if size:
        smaller = Said("smaller_batch_for", numbers | {"gb": size / 1e9})
    [row] = read_csv(larger.with_name("row.csv"))
    sentences = [smaller, of_cell(row["message"])]
    message = cell_of(joined(drop_none(sentences)))
    write_csv(larger.with_name("row.csv"), [row | {"message": message}])


def measure(step: str, config_path: Path) -> Row:
    """Measures the run at `config_path` and writes its row into the same folder. Raises
    ConfigurationError if the config is of another measurement or device."""
    started = time.perf_counter()
    started_at = datetime.now(UTC)
    config = read_config(step, config_path)
    folder = config_path.absolute().parent  # a model may change the current folder
    hardware = check_device(config, folder)
    row_of = MEASUREMENTS[step].row.of
    before = circumstances()
    try:
        if config.on_device:
            system.check_processes()
            _kept = elsewhere()
        measure_of_step = importlib.import_module(f"mfulab.measurements.{step}.measure").measure
        with heard():
            measured = _as_before(step, config, folder) or measure_of_step(config, folder)
    except (Exception, SystemExit) as error:  # argparse in a model's module raises SystemExit
        if not isinstance(error, ConfigurationError):  # its sentence is enough
            traceback.print_exc()  # goes to the log; the row has the sentence
        status = _status_of(error)
        measured = Measured(row_of(config, status=status, message=_message(error)))
    measured.row.process_s = time.perf_counter() - started
    changes = before.changes()
    if changes and measured.row.status == "ok":
        measured.row.message = with_sentence(measured.row.message, changes)
    measured.row.device_uuid = uuids(config)
    return _finish(measured, folder, hardware, started_at)


def uuids(config: StepConfig) -> str:
    """Identifiers of the GPUs that a run sees, joined by spaces; "" without a GPU."""
    from mfulab.device import identity, is_gpu

    if not config.on_device:
        return ""
    kind = identity.resolve(config.device.type)  # type: ignore[attr-defined]
    if is_gpu(kind):
        return " ".join(gpu.uuid for gpu in identity.gpus(kind))
    return ""


def elsewhere() -> tuple[mmap.mmap, bytearray]:
    """Allocates memory of a random size. While it is kept, the addresses of a run's data differ
    from those in the process before it."""
    chance = random.SystemRandom()
    pages = chance.randint(1, MOST_PAGES)
    mapped = mmap.mmap(-1, pages * mmap.PAGESIZE)
    mapped[:: mmap.PAGESIZE] = bytes(pages)  # touches each page, so that it is allocated
    return mapped, bytearray(chance.randrange(MOST_BYTES))


def record_failure(
    step: str, config_path: Path, ended_by: str, process_s: float | None = None
) -> Row:
    """Writes the row of a run that was ended from outside (killed, crashed, late) after `process_s`
    seconds, or never begun. `ended_by` is its ending, in the form of mfulab.lab.runtime.endings."""
    config = read_config(step, config_path)
    folder = config_path.parent
    hardware = folder.parents[1].name if config.on_device else ""
    status = ENDED.get(endings.key_of(ended_by), "failed")
    row_of = MEASUREMENTS[step].row.of
    measured = Measured(row_of(config, status=status, message=ended_by, ended_by=ended_by))
    measured.row.process_s = process_s
    started_at = datetime.now(UTC) - timedelta(seconds=process_s or 0)
    return _finish(measured, folder, hardware, started_at)


def read_config(step: str, path: Path) -> StepConfig:
    """The validated config of a run. Raises ConfigurationError if it cannot be read or is
    invalid."""
    try:
        return MEASUREMENTS[step].config.model_validate(read_json(path))
    except (FileNotFoundError, UnreadableError) as error:
        raise ConfigurationError(Said("plan_anew", sentence=said_by(error))) from error
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise ConfigurationError(
            Said("no_config_of", file=str(path), step=step, error=message)
        ) from error


def check_device(config: StepConfig, folder: Path) -> str:
    """The hardware in the path of the run's folder, "" if it needs no device. Raises
    ConfigurationError if this machine is another one."""
    if not config.on_device:
        return ""
    from mfulab.device.identity import NoDeviceError, hardware_slug

    claimed = folder.parents[1].name
    try:
        here = hardware_slug(config.device.type)  # type: ignore[attr-defined]
    except NoDeviceError as error:
        raise ConfigurationError(of_source(f"hardware={claimed}", said_by(error))) from error
    if here != claimed:
        raise ConfigurationError(Said("planned_for_another", planned=claimed, here=here))
    return claimed


def _as_before(step: str, config: StepConfig, folder: Path) -> Measured | None:
    """Result of a replicate that need not be measured: the one before failed in a way that would
    repeat, or all before are precise enough. None if it must be measured."""
    rows = _earlier(folder)
    if not rows:
        return None
    row_of = MEASUREMENTS[step].row.of
    last = rows[0]
    ended_by = last.get("ended_by") or None
    has_failed = last.get("status", "ok") != "ok"
    if has_failed and endings.key_of(ended_by) not in endings.BY_CHANCE:
        message = last.get("message", "")
        return Measured(row_of(config, status=last["status"], message=message, ended_by=ended_by))
    precise = _precise_enough(rows, config)
    if precise is None:
        return None
    return Measured(row_of(config, message=cell_of(precise)))


def _earlier(folder: Path) -> list[dict[str, str]]:
    """Measured rows of earlier replicates, the latest first."""
    rows = []
    before = previous(folder.name)
    while before:
        with suppress(FileNotFoundError, UnreadableError):
            for row in read_csv(folder.with_name(before) / "row.csv")[:1]:
                if row["status"] != NOT_MEASURED:
                    rows.append(row)
        before = previous(before)
    return rows


def _precise_enough(rows: Sequence[Mapping[str, str]], config: StepConfig) -> Said | None:
    """Sentence that the times of replicates are as precise as the config wants; None if not."""
    timing = getattr(config, "timing", None)
    wanted = getattr(timing, "relative_precision", None)
    times = [float(row["time_s"]) for row in rows if row.get("time_s")]
    if wanted is None or len(times) < FEWEST_REPLICATES:
        return None
    reached = relative_half_width(times)
    if reached is None or reached > wanted:
        return None
    return Said("precise_enough", count=len(times), reached=reached, wanted=wanted)


def _status_of(error: BaseException) -> Status:
    if isinstance(error, UnsupportedError):
        return "unsupported"
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    return "failed"


def _message(error: BaseException) -> str:
    """Cell for a row's `message`: the sentence of an UnsupportedError, or type and first line of
    any other error, followed by its notes."""
    sentences = []
    if isinstance(error, UnsupportedError):
        sentences.append(error.said)
    else:
        lines = str(error).strip().splitlines()
        first = lines[0] if lines else ""
        sentences.append(as_told(f"{type(error).__name__}: {first}"))
    sentences += map(as_told, getattr(error, "__notes__", ()))
    # Errors of semaphores name no file.
    is_nameless = isinstance(error, OSError) and error.filename is None
    if is_nameless and not system.has_semaphores():
        sentences.append(Said("no_semaphores"))
    return cell_of(joined(sentences))


def _finish(measured: Measured, folder: Path, hardware: str, started_at: datetime) -> Row:
    """Completes a row and writes it, with its samples, into the run's folder."""
    row = measured.row
    row.hardware = hardware
    row.host = socket.gethostname()
    row.run = folder.name
    row.commit = commit()
    row.started_at = started_at.isoformat(timespec="seconds")
    write_csv(folder / "samples.csv", measured.samples)
    write_csv(folder / "row.csv", [row.model_dump()])
    return row


@cache
def commit() -> str:
    """Short git commit of the running code, with `-dirty` if tracked files were changed; "" outside
    git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    with suppress(OSError, subprocess.CalledProcessError):
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()
    return ""


if __name__ == "__main__":  # used without a checkout, which has scripts/run.py
    sys.path.pop(0)  # this folder, whose modules must not shadow others
    main(sys.argv.pop(1))
