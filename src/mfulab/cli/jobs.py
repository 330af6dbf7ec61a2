"""`mfulab watch --jobs URL`: utilization and OFU per user and job, from a Prometheus server that
scrapes DCGM."""

import math
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from mfulab.core.errors import ConfigurationError
from mfulab.core.json_text import parse_json
from mfulab.core.language import Texts
from mfulab.core.parts import Record, Row, leave_out
from mfulab.core.said import Said, of_source
from mfulab.core.terminal import table
from mfulab.device.peaks import peak
from mfulab.loop.goodput.pages import loaded
from mfulab.mfu.account import expected_mfu
from mfulab.mfu.step import Counters, StepFacts, StepPeaks

# Labels for job and user in dcgm-exporter with --hpc-job-mapping-dir, slurm-job-exporter and
# Kubernetes.
JOB = ("hpc_job", "slurmjobid", "exported_pod", "pod")
USER = ("user", "exported_namespace", "namespace")
# Unless Prometheus is set to honour labels, these name the exporter's own pod, and the workload's
# have the prefix `exported_`.
OWN = ("pod", "namespace")
_EXPORTER = re.compile(r"exporter|dcgm", re.IGNORECASE)
BUSY = "DCGM_FI_DEV_GPU_UTIL"
CYCLES = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE * DCGM_FI_DEV_SM_CLOCK"
OF_JOB = ", ".join((*JOB, *USER, "modelName"))
BY = f"by ({OF_JOB})"
# One group per GPU or MIG instance, even if several scrapes or processes have series of it.
OF_GPU = f"by ({OF_JOB}, UUID, gpu, GPU_I_ID, Hostname)"
QUERIES = {  # in PromQL, per job and device, sampled once a minute
    "gpus": f"count {BY} (max {OF_GPU} (count_over_time({BUSY}[RANGE:1m])))",
    "gpu_hours": f"sum {BY} (max {OF_GPU} (count_over_time({BUSY}[RANGE:1m]))) / 60",
    "utilization_percent": f"avg {BY} (max {OF_GPU} (avg_over_time({BUSY}[RANGE:1m])))",
    "active_mhz": f"avg {BY} (max {OF_GPU} (avg_over_time(({CYCLES})[RANGE:1m])))",
}
# Owners of jobs, from slurm-job-exporter.
OWNERS = "group by (user, slurmjobid) (last_over_time(slurm_job_utilization_gpu[RANGE:1m]))"
OF_TENSOR_CORES = "fp16"  # all formats of tensor cores have the same peak clock
COLUMNS = ("user", "job", "device", "gpus", "gpu_hours", "utilization_percent", "ofu_percent")
DEADLINE_S = 10.0  # for all queries together


Labels = Mapping[str, str]  # of a series


@dataclass(frozen=True)
class Server:
    """A Prometheus server, and the time.monotonic() by which all of its answers must have
    arrived."""

    address: str
    option: str
    until: float


@dataclass(frozen=True)
class MetricSeries:
    """One time series in an answer of Prometheus: its labels and current value."""

    labels: Labels
    value: float


def frames(
    url: str, hours: float, interval_s: float, language: str
) -> Iterator[tuple[Record, Group]]:
    """Yields a sample and a table of the jobs of the last hours every `interval_s` seconds, without
    end. Raises ConfigurationError if no Prometheus answers, or it knows no job."""
    text = Texts(language, "watch")
    heads = list(map(text, COLUMNS))
    while True:
        jobs = jobs_of(url, hours)
        shown = table(heads[:3], heads[3:])
        for job in jobs:
            shown.add_row(*(_cell(job[name]) for name in COLUMNS))
        note = Text(text("ofu_of_jobs"), style="dim")
        yield {"unix_s": time.time(), "jobs": jobs}, Group(shown, note)
        time.sleep(interval_s)


def _cell(value: object) -> str:
    if value is None:
        return "—"
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value)


def jobs_of(url: str, hours: float) -> list[Record]:
    """One row per job and device, sorted by GPU hours × (utilization − OFU), largest first, unknown
    last. Raises ConfigurationError like `frames`."""
    address = (url if "://" in url else f"http://{url}").rstrip("/")
    server = Server(address, f"--jobs {url}", time.monotonic() + DEADLINE_S)
    users = _owners(server, hours)
    rows = dict[tuple[str, str, str], Record]()
    for column, query in QUERIES.items():
        answers = _query(server, query, hours)
        is_exported = any(series.labels.get("exported_pod") for series in answers)
        for series in answers:
            labels = _workload_labels(series.labels, is_exported)
            names = _names(labels, users)
            if names is None:
                continue
            if names not in rows:
                user, job, device = names
                empty = dict.fromkeys(COLUMNS)
                rows[names] = empty | {"user": user, "job": job, "device": device}
            rows[names][column] = series.value
    if not rows:
        no_label = Said("no_label_of_jobs", metric=BUSY, hours=hours, labels=", ".join(JOB))
        raise ConfigurationError(of_source(f"--jobs {url}", no_label))
    for row in rows.values():
        _fill(row)
    return sorted(rows.values(), key=_unused_hours, reverse=True)


def _owners(server: Server, hours: float) -> dict[str, str]:
    """User of each Slurm job, keyed by job number."""
    users = dict[str, str]()
    for series in _query(server, OWNERS, hours):
        users[series.labels.get("slurmjobid", "")] = series.labels.get("user", "")
    return users


def _names(labels: Labels, users: Labels) -> tuple[str, str, str] | None:
    """User, job and device of a series; None if its labels name no job."""
    job = _first(labels, JOB)
    if not job:
        return None
    user = users.get(job) or _first(labels, USER)
    return user, job, labels.get("modelName", "")


def _fill(row: Record) -> None:
    """Sets `ofu_percent` from the tensor cores' active clock, if the device's peak clock is
    known."""
    active_mhz = row.pop("active_mhz", None)
    row["gpus"] = None if row["gpus"] is None else int(row["gpus"])
    # A pipe that is always active at this clock is as active as the one that Prometheus averaged.
    counters = Counters(tensor_active_percent=100.0, clock_mhz=active_mhz)
    device_peak = peak(row["device"], OF_TENSOR_CORES)
    peaks = StepPeaks(
        effective_precision=OF_TENSOR_CORES, peak_clock_mhz=device_peak.spec_clock_mhz
    )
    row["ofu_percent"] = expected_mfu(StepFacts(peaks=peaks, counters=counters))


def _unused_hours(job: Row) -> float:
    """GPU hours × (utilization − OFU), a sort key; minus infinity if one of them is unknown."""
    utilization, ofu = job["utilization_percent"], job["ofu_percent"]
    if None in (job["gpu_hours"], utilization, ofu):
        return -math.inf
    return float(job["gpu_hours"] * (utilization - ofu))


def _workload_labels(labels: Labels, is_exported: bool) -> Labels:
    """Labels without those of the exporter's own pod, which is not a job."""
    is_own = is_exported or bool(_EXPORTER.search(labels.get("pod", "")))
    ignored = OWN if is_own else ()
    return leave_out(labels, ignored)


def _first(labels: Labels, names: tuple[str, ...]) -> str:
    for name in names:
        if labels.get(name):
            return labels[name]
    return ""


def _query(server: Server, query: str, hours: float) -> list[MetricSeries]:
    """Current series of a query, without infinite and NaN values. Raises ConfigurationError if the
    answer is not Prometheus's."""
    minutes = max(1, round(60 * hours))
    parameters = urllib.parse.urlencode({"query": query.replace("RANGE", f"{minutes}m")})
    left_s = max(0.0, server.until - time.monotonic())
    text = loaded(f"{server.address}/api/v1/query?{parameters}", server.option, left_s)
    try:
        series = list(map(_series, parse_json(text)["data"]["result"]))
    except (ValueError, TypeError, LookupError) as error:
        other = Said("no_prometheus", error=str(error)[:80])
        raise ConfigurationError(of_source(server.option, other)) from error
    return [one for one in series if math.isfinite(one.value)]


def _series(result: Any) -> MetricSeries:
    """Parses one series of an answer. Raises TypeError if a label is not a text."""
    labels = dict(result["metric"])
    for name, value in labels.items():
        if not isinstance(value, str):
            raise TypeError(f"label {name} is {type(value).__name__}, not text")
    return MetricSeries(labels, float(result["value"][1]))
