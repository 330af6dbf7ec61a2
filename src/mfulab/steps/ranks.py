"""One step in several processes that train one model together, and the row that they make of it."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from mfulab.hardware import identity
from mfulab.models import parallel
from mfulab.models.build import build
from mfulab.models.workload import parameter_dtype
from mfulab.schema.configs import ProfileStepConfig
from mfulab.schema.errors import UnsupportedError
from mfulab.schema.files import read_json, write_json
from mfulab.schema.profile_row import ProfileRow
from mfulab.steps.base import Measured
from mfulab.tracing.analysis import Analysis
from mfulab.tracing.ranks import waits

MeasureRank = Callable[[ProfileStepConfig, Path], tuple[Measured, Analysis | None]]


def measure(config: ProfileStepConfig, folder: Path, measure_rank: MeasureRank) -> Measured:
    """The row of a whole job: each of its processes measures the step as `measure_rank` does, all in step.

    Its time is that of the slowest rank, its memory that of the largest, its files those of rank 0.

    Raises:
        UnsupportedError: there are fewer devices than processes, or a rank cannot run the step.
        RuntimeError: a rank failed; the message is the rank's.
    """
    asked, wanted = config.parallel, config.device
    on_gpu = identity.resolve(config.device.type) == "cuda"
    if config.execution.mode != "eager":
        raise UnsupportedError(f"execution={config.execution.name}: several processes run eagerly")
    threads = None
    if on_gpu:
        parallel.require_devices(asked, torch.cuda.device_count(), "a GPU")
        devices = float(asked.processes)
    else:
        threads = parallel.threads_per_rank(asked, wanted)
        devices = asked.processes if wanted.threads else asked.processes * threads / parallel.usable_cores()
    each = config.model_copy(update={"device": wanted.model_copy(update={"threads": threads or wanted.threads})})
    with tempfile.TemporaryDirectory() as place:
        arguments = (each.model_dump_json(by_alias=True), folder, Path(place), measure_rank)
        try:
            processes.start_processes(_rank, arguments, asked.processes, start_method="spawn", daemon=True)
        except processes.ProcessRaisedException as error:
            said = str(error).strip().splitlines()[-1]
            if "UnsupportedError" in said:
                raise UnsupportedError(said.partition(": ")[2]) from error
            raise RuntimeError(f"rank {error.error_index}: {said}") from error
        ranks = [read_json(Path(place) / f"{rank}.json") for rank in range(asked.processes)]
    job = _job(ranks, devices)
    with torch.device("meta"):
        model = build(config.model).to(dtype=parameter_dtype(config.precision))
    job.predicted_sent_bytes = parallel.predicted_bytes(model, asked, torch.device("cuda" if on_gpu else "cpu"))
    return Measured(job, ranks[0]["samples"])


def _rank(rank: int, config_json: str, folder: Path, place: Path, measure_rank: MeasureRank) -> None:
    config = ProfileStepConfig.model_validate_json(config_json)
    own = folder if rank == 0 else place / str(rank)
    own.mkdir(exist_ok=True)
    parallel.join(rank, config.parallel, place / "store", torch.device(identity.resolve(config.device.type)))
    measured, analysis = measure_rank(config, own)
    told = {"row": measured.row.model_dump(), "samples": measured.samples, **_communication(analysis)}
    write_json(place / f"{rank}.json", told)
    dist.barrier()
    dist.destroy_process_group()


def _communication(analysis: Analysis | None) -> dict[str, Any]:
    """Of the traced steps: ns of all communication, of what compute does not hide, and of each collective."""
    if analysis is None:
        return {"steps": 0, "length": 0, "communication": 0, "exposed": 0, "collectives": {}}
    share = analysis.readings["communication_total_percent"].value or 0.0
    length = analysis.window.length
    return {
        "steps": analysis.window.steps,
        "length": length,
        "communication": share / 100 * length,
        "exposed": analysis.spent["communication"],
        "collectives": analysis.collectives,
    }


def _job(ranks: list[dict[str, Any]], devices: float) -> ProfileRow:
    """Rank 0's row, with the time of the slowest rank, the memory of the largest, and what each waited for."""
    rows = [ProfileRow.model_validate(each["row"]) for each in ranks]
    job = rows[0].model_copy()
    slowest = max(rows, key=lambda row: row.time_s or 0)
    for name in ("time_s", "time_p5_s", "time_p95_s"):
        setattr(job, name, getattr(slowest, name))
    job.devices = devices
    job.memory_bytes = max((row.memory_bytes for row in rows if row.memory_bytes is not None), default=None)
    waited = waits({rank: each["collectives"] for rank, each in enumerate(ranks)}) if ranks[0]["steps"] else {}
    told = []
    for rank, (each, row) in enumerate(zip(ranks, rows, strict=True)):
        one: dict[str, Any] = {"rank": rank, "time_ms": 1e3 * (row.time_s or 0), "memory_bytes": row.memory_bytes}
        if waited:
            transfer, waiting = waited[rank]
            spent = {"communication": each["communication"], "exposed": each["exposed"]}
            spent |= {"transfer": transfer, "waiting": waiting}
            one |= {f"{name}_ms": ns / 1e6 / each["steps"] for name, ns in spent.items()}
        told.append(one)
    job.ranks = json.dumps(told)
    if waited:
        job.slowest_rank = min(waited, key=lambda rank: waited[rank][1])
        last = max(waited, key=lambda rank: waited[rank][1])
        job.transfer_percent, job.waiting_percent = (100 * ns / ranks[last]["length"] for ns in waited[last])
        job.exposed_communication_ms = max(one["exposed_ms"] for one in told)
    return job
