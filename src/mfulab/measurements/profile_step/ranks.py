"""Runs one step in several processes that train one model together, and merges their reports into
one row."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mfulab.core.errors import UnsupportedError
from mfulab.core.files import read_json, write_json, write_text
from mfulab.core.groups import ParallelConfig
from mfulab.core.json_text import parse_json
from mfulab.core.measurement import Measured
from mfulab.core.printing import say
from mfulab.core.said import Said, as_json, from_json
from mfulab.device import identity, is_gpu, require_cuda
from mfulab.measurements.profile_step import ProfileRow, ProfileStepConfig
from mfulab.measurements.profile_step.process import measure_step
from mfulab.mfu.job import waits
from mfulab.models import parallel
from mfulab.models.build import build
from mfulab.models.step import parameter_dtype
from mfulab.tracing.analysis import Analysis

CONFIG = "job.json"
REPORT = "report.json"
UNSUPPORTED = "unsupported.json"  # a rank's reason why it cannot run the step


def measure(config: ProfileStepConfig, folder: Path) -> Measured:
    """Returns one row for the whole job: the slowest rank's time, the largest rank's memory, and
    summed energy and power. Files in `folder` are rank 0's. Raises UnsupportedError if there are
    too few devices or a rank cannot run the step, and RuntimeError with the message of a rank that
    failed."""
    job = config.parallel
    requested = config.device
    device = torch.device(identity.resolve(config.device.type))
    if config.execution.mode != "eager":
        raise UnsupportedError(Said("processes_run_eagerly", execution=config.execution.name))
    threads = requested.threads
    devices = float(job.processes)
    if is_gpu(device):
        require_cuda(device, f"parallel.processes={job.processes}")
        parallel.require_devices(job, torch.cuda.device_count(), Said("a_gpu"))
    else:
        threads = parallel.threads_per_rank(job, requested)
        if not requested.threads:
            devices = job.processes * threads / parallel.usable_cores()
    rank_device = requested.model_copy(update={"threads": threads})
    rank_config = config.model_copy(update={"device": rank_device})
    # next to the row, as this is the only folder that all nodes of a cluster share
    job_folder = folder / "ranks"
    shutil.rmtree(job_folder, ignore_errors=True)
    job_folder.mkdir()
    write_text(job_folder / CONFIG, rank_config.model_dump_json(by_alias=True))
    try:
        if job.nodes > 1:
            _over_nodes(job, job_folder)
        else:
            _on_this_machine(job, job_folder)
        ranks = [read_json(job_folder / str(rank) / REPORT) for rank in range(job.processes)]
        shutil.copytree(
            job_folder / "0", folder, ignore=shutil.ignore_patterns(REPORT), dirs_exist_ok=True
        )
    finally:
        shutil.rmtree(job_folder, ignore_errors=True)
    row = _row(ranks, devices, job.nodes)
    with torch.device("meta"):
        model = build(config.model).to(dtype=parameter_dtype(config.precision))
    row.predicted_sent_bytes = parallel.predicted_bytes(
        model, job, device, config.workload.gradient_accumulation
    )
    return Measured(row, ranks[0]["samples"])


def _on_this_machine(job: ParallelConfig, job_folder: Path) -> None:
    """Runs all ranks as processes of this machine, which meet at a file in `job_folder`."""
    meeting = f"file:{job_folder / 'store'}"
    try:
        parallel.run_ranks(_rank, (meeting, job_folder), job.processes)
    except RuntimeError as error:
        _raise_unsupported(job_folder, error)
        raise


def _over_nodes(job: ParallelConfig, job_folder: Path) -> None:
    """Runs all ranks by srun, which meet at a TCP store of this node. Raises UnsupportedError
    without srun."""
    if shutil.which("srun") is None:
        raise UnsupportedError(Said("no_srun", nodes=str(job.nodes)))
    store = dist.TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False)
    meeting = f"tcp:{socket.gethostname()}:{store.port}"
    tasks = ("srun", f"--nodes={job.nodes}", f"--ntasks={job.processes}", "--kill-on-bad-exit=1")
    command = [*tasks, sys.executable, "-m", __name__, meeting, str(job_folder)]
    finished = subprocess.run(
        command, stdout=None, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    say(finished.stderr, end="", file=sys.stderr)
    if finished.returncode:
        _raise_unsupported(job_folder)
        reason = f"exit status {finished.returncode}"
        errors = [line for line in finished.stderr.splitlines() if "Error: " in line]
        if errors:
            message = errors[0].partition("Error: ")[2]
            reason = message or errors[0]
        raise RuntimeError(f"a rank failed: {reason}")


def _raise_unsupported(job_folder: Path, cause: BaseException | None = None) -> None:
    """Raises the UnsupportedError that a rank left in its folder, if any."""
    for path in sorted(job_folder.glob(f"*/{UNSUPPORTED}")):
        raise UnsupportedError(from_json(read_json(path))) from cause


def _rank(rank: int, meeting: str, job_folder: Path, local: int | None = None) -> None:
    """Runs one rank's step. Writes its report, or the reason why the step cannot run, to the rank's
    folder."""
    try:
        _measure_rank(rank, meeting, job_folder, local)
    except UnsupportedError as error:
        write_json(job_folder / str(rank) / UNSUPPORTED, as_json(error.said))
        raise


def _measure_rank(rank: int, meeting: str, job_folder: Path, local: int | None) -> None:
    """Joins the job, measures the step, and writes the rank's report. `meeting` is `file:PATH` or
    `tcp:HOST:PORT`; `local` is the rank's index on its node."""
    config = ProfileStepConfig.model_validate_json(
        (job_folder / CONFIG).read_text(encoding="utf-8")
    )
    rank_folder = job_folder / str(rank)
    rank_folder.mkdir()
    device = torch.device(identity.resolve(config.device.type))
    if is_gpu(device):
        parallel.see_one_gpu(rank if local is None else local)
    kind, _, address = meeting.partition(":")
    store: dist.Store
    if kind == "file":
        store = dist.FileStore(address, config.parallel.processes)
    else:
        host, _, port = address.rpartition(":")
        store = dist.TCPStore(host, int(port), is_master=False)
    parallel.join(rank, config.parallel, store, device)
    measured, analysis = measure_step(config, rank_folder)
    report = {
        "row": measured.row.model_dump(),
        "samples": measured.samples,
        **_communication(analysis),
    }
    # a CPU's energy meter counts the whole machine, so its ranks share one
    report["meter"] = rank if is_gpu(device) else socket.gethostname()
    write_json(rank_folder / REPORT, report)
    dist.barrier()
    dist.destroy_process_group()


def _communication(analysis: Analysis | None) -> dict[str, Any]:
    """Summarizes a rank's trace: steps and length (ns) of the window, and communication in ns:
    total, exposed, and of each collective. All are 0 or empty if the step was not traced."""
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


def others_of_job(rows: Sequence[ProfileRow]) -> float | None:
    """CPU time of processes outside the job, on one machine, as a percentage of its CPUs. None if
    any rank did not measure it."""
    systems = list[float]()
    job_percent = 0.0
    for row in rows:
        system = row.system_utilization_percent
        others = row.other_processes_percent
        if system is None or others is None:
            return None
        systems.append(system)
        job_percent += system - others
    if not systems:
        return None
    return max(0.0, sum(systems) / len(systems) - job_percent)


def energy_of_job(job: ProfileRow, metered: Iterable[ProfileRow]) -> None:
    """Sets the job's energy and power to the sums over its meters. A value that one meter lacks
    becomes None, with the reason."""
    meters = list(metered)
    sources = parse_json(job.sources or "{}")
    reasons = parse_json(job.reasons or "{}")
    for name in ("energy_j", "power_w"):
        values = [getattr(row, name) for row in meters]
        if None in values:
            setattr(job, name, None)
            sources.pop(name, None)
            meter_reasons = parse_json(meters[values.index(None)].reasons or "{}")
            reasons[name] = meter_reasons.get(name, as_json(Said("one_rank_none")))
        else:
            setattr(job, name, sum(values))
            if len(values) > 1:
                sources[name] = f"{sources[name]}, the sum of {len(values)}"
    job.sources = json.dumps(sources, ensure_ascii=False)
    job.reasons = json.dumps(reasons, ensure_ascii=False) if reasons else None


def _row(ranks: list[dict[str, Any]], devices: float, nodes: int) -> ProfileRow:
    """Merges the ranks into rank 0's row: the slowest rank's times, the largest rank's memory,
    summed energy, and communication per rank."""
    rows = [ProfileRow.model_validate(report["row"]) for report in ranks]
    job = rows[0].model_copy()
    slowest = max(rows, key=lambda row: row.time_s or 0)
    for name in ("time_s", "median_time_s", "time_p5_s", "time_p95_s"):
        setattr(job, name, getattr(slowest, name))
    job.devices = devices
    if nodes == 1:
        job.other_processes_percent = others_of_job(rows)
    known_memory = [row.memory_bytes for row in rows if row.memory_bytes is not None]
    job.memory_bytes = max(known_memory, default=None)
    by_meter = {report["meter"]: row for report, row in zip(ranks, rows, strict=True)}
    energy_of_job(job, by_meter.values())
    rank_entries: list[dict[str, float | None]] = [
        {"rank": rank, "time_ms": 1e3 * (row.time_s or 0), "memory_bytes": row.memory_bytes}
        for rank, row in enumerate(rows)
    ]
    if ranks[0]["steps"]:
        _add_communication(job, rank_entries, ranks)
    job.ranks = json.dumps(rank_entries)
    return job


def _add_communication(
    job: ProfileRow,
    rank_entries: Sequence[dict[str, float | None]],
    ranks: Sequence[dict[str, Any]],
) -> None:
    """Adds communication and waiting in ms to each rank's entry, and sets the job's columns on
    communication."""
    collectives = {rank: report["collectives"] for rank, report in enumerate(ranks)}
    transfer_and_waiting = waits(collectives)
    if not transfer_and_waiting:
        return
    for rank, (entry, report) in enumerate(zip(rank_entries, ranks, strict=True)):
        transfer, waiting = transfer_and_waiting[rank]
        spent_ns = {
            "communication": report["communication"],
            "exposed": report["exposed"],
            "transfer": transfer,
            "waiting": waiting,
        }
        for name, ns in spent_ns.items():
            entry[f"{name}_ms"] = ns / 1e6 / report["steps"]
    exposed_ms = [report["exposed"] / 1e6 / report["steps"] for report in ranks]
    waiting_ns = {rank: waiting for rank, (_, waiting) in transfer_and_waiting.items()}
    job.slowest_rank = min(waiting_ns, key=waiting_ns.__getitem__)
    longest_waiting = max(waiting_ns, key=waiting_ns.__getitem__)
    transfer, waiting = transfer_and_waiting[longest_waiting]
    window_ns = ranks[longest_waiting]["length"]
    job.transfer_percent = 100 * transfer / window_ns
    job.waiting_percent = 100 * waiting / window_ns
    job.exposed_communication_ms = max(exposed_ms)


# Started by srun as one rank; the arguments are the rendezvous and the job's folder.
if __name__ == "__main__":
    _rank(
        int(os.environ["SLURM_PROCID"]),
        sys.argv[1],
        Path(sys.argv[2]),
        int(os.environ["SLURM_LOCALID"]),
    )
