"""`mfulab watch --jobs URL`: utilization beside OFU by user and job, from a Prometheus server that scrapes DCGM."""

import json
import math
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from mfulab.core.errors import ConfigurationError
from mfulab.core.terminal import table
from mfulab.device.peaks import peak
from mfulab.loop.goodput.pages import loaded

# Labels by which exporters name one thing: dcgm-exporter with --hpc-job-mapping-dir, slurm-job-exporter, Kubernetes.
JOB = ("hpc_job", "slurmjobid", "exported_pod", "pod")
USER = ("user", "exported_namespace", "namespace")
BUSY, CYCLES = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE * DCGM_FI_DEV_SM_CLOCK"
BY = f"by ({', '.join((*JOB, *USER, 'modelName'))})"
QUERIES = {  # in PromQL, of each job and device; a sample a minute
    "gpus": f"count {BY} (count_over_time({BUSY}[RANGE:1m]))",
    "gpu_hours": f"sum {BY} (count_over_time({BUSY}[RANGE:1m])) / 60",
    "utilization_percent": f"avg {BY} (avg_over_time({BUSY}[RANGE:1m]))",
    "active_mhz": f"avg {BY} (avg_over_time(({CYCLES})[RANGE:1m]))",
}
OWNERS = "group by (user, slurmjobid) (last_over_time(slurm_job_utilization_gpu[RANGE:1m]))"  # slurm-job-exporter's
COLUMNS = ("user", "job", "device", "gpus", "gpu_hours", "utilization_percent", "ofu_percent")
NOTE = "OFU: tensor pipe × clock ÷ the peak's clock. It misses work in fp32 and fp64, and needs a known device."


def frames(url: str, hours: float, interval_s: float) -> Iterator[tuple[dict[str, Any], Group]]:
    """Jobs of the last hours, for ever. Raises ConfigurationError where no Prometheus answers, or knows no job."""
    while True:
        jobs = jobs_of(url, hours)
        shown = table(COLUMNS[:3], COLUMNS[3:])
        for job in jobs:
            texts = (f"{job[name]:.1f}" if isinstance(job[name], float) else str(job[name]) for name in COLUMNS)
            shown.add_row(*("—" if text == "None" else text for text in texts))
        yield {"unix_s": time.time(), "jobs": jobs}, Group(shown, Text(NOTE, style="dim"))
        time.sleep(interval_s)


def jobs_of(url: str, hours: float) -> list[dict[str, Any]]:
    """A row a job and device, the one with most GPU hours between utilization and OFU first, unknown ones last."""
    users = {labels.get("slurmjobid", ""): labels.get("user", "") for labels, _ in _asked(url, OWNERS, hours)}
    rows = dict[tuple[str, str, str], dict[str, Any]]()
    for column, query in QUERIES.items():
        for labels, value in _asked(url, query, hours):
            job, user = (next((labels[name] for name in aliases if labels.get(name)), "") for aliases in (JOB, USER))
            if job:
                names = users.get(job, user), job, labels.get("modelName", "")
                rows.setdefault(names, dict.fromkeys(COLUMNS) | dict(zip(COLUMNS, names, strict=False)))[column] = value
    if not rows:
        raise ConfigurationError(f"--jobs {url}: {BUSY} of {hours:g} h has no label of {', '.join(JOB)}.")
    for row in rows.values():
        active, clock = row.pop("active_mhz", None), peak(row["device"], "fp16").spec_clock_mhz
        row["gpus"] = None if row["gpus"] is None else int(row["gpus"])
        row["ofu_percent"] = 100 * active / clock if active is not None and clock else None

    def unused_hours(job: Mapping[str, Any]) -> float:
        hours, utilization, ofu = (job[name] for name in COLUMNS[4:])
        return -math.inf if None in (hours, utilization, ofu) else hours * (utilization - ofu)

    return sorted(rows.values(), key=unused_hours, reverse=True)


def _asked(url: str, query: str, hours: float) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each series that a query gives now, without those that are no number."""
    asked = urllib.parse.urlencode({"query": query.replace("RANGE", f"{max(1, round(60 * hours))}m")})
    where = (url if "://" in url else f"http://{url}").rstrip("/")
    text = loaded(f"{where}/api/v1/query?{asked}", f"--jobs {url}")
    try:
        series = [(result["metric"], float(result["value"][1])) for result in json.loads(text)["data"]["result"]]
        return [(labels, value) for labels, value in series if math.isfinite(value)]
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigurationError(f"--jobs {url}: answers as no Prometheus does ({str(error)[:80]})") from error
