"""Pages for Prometheus, read: which series of a metric are repeats, which are totals, and which are parts that sum. One
rule for all labels. Ranks that share a request repeat it: one of them counts. A series whose labels are some of
another's, with the same values, is the total of the longer ones: an empty label is none, and so is `all`. What is left
are parts; those of an engine's labels are engines of their own."""

import http.client
import math
import re
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from mfulab.core.data import data
from mfulab.core.errors import ConfigurationError

METRICS: Mapping[str, Mapping[str, list[str]]] = data(Path(__file__).with_name("engines.yaml"))
NAMES = frozenset(name for metrics in METRICS.values() for aliases in metrics.values() for name in aliases)
REPEATS = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "cp_rank", "attn_tp_rank")
ENGINES: tuple[str, ...] = ("model_name", "engine", "engine_id", "dp_rank", "WorkerId", "ReplicaId")
ENGINES += ("replica", "worker_id", "instance", "pod")
WHOLE = ("", "all", "total")  # values of a label that stand for every value
KNOWN = re.compile(r"(?:^|_)((?:vllm|sglang|mfulab)_.*)")  # what a framework, as Ray, puts in front is not read
DEADLINE_S, MOST_BYTES = 5.0, 1 << 25
LATE = f"no whole page within {DEADLINE_S:g} s"

Labels = frozenset[tuple[str, str]]
Series = Mapping[Labels, float]


@dataclass(frozen=True)
class Metrics:
    """A page's known metrics by name, a colon as an underscore: values by labels, without repeats."""

    seconds: float
    model: str
    series: Mapping[str, Series]
    names: Sequence[str]  # all, as on the page
    engines: Mapping[str, Labels]  # name → labels; none where the page is of one
    owners: int  # engines with devices of their own

    def of(self, metric: str, engine: str | None = None) -> list[float]:
        """Values of a metric's parts, of one engine or of all; of a total and its parts the total."""
        labels = self.engines[engine] if engine else Labels()
        own = {part: value for part, value in self.series.get(metric, {}).items() if labels <= part}
        return [value for part, value in own.items() if not any(other < part for other in own)]


class Reader:
    """Reads pages side by side, each within the deadline; one that is late is waited for once."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._threads: dict[str, threading.Thread | None] = dict.fromkeys(urls)

    def read(self) -> dict[str, Metrics | ConfigurationError]:
        """A page of each address, or in one sentence why there is none."""
        pages: dict[str, Metrics | ConfigurationError] = {}

        def read_page(url: str) -> None:
            try:
                pages[url] = read(url)
            except ConfigurationError as error:
                pages[url] = error

        until = time.monotonic() + DEADLINE_S
        fresh = [url for url, thread in self._threads.items() if not (thread and thread.is_alive())]
        started = {url: threading.Thread(target=read_page, args=(url,), daemon=True) for url in fresh}
        self._threads |= started
        for thread in started.values():
            thread.start()
        for thread in started.values():
            thread.join(max(0.0, until - time.monotonic()))
        return {url: pages.get(url) or ConfigurationError(f"--engine {url}: {LATE}") for url in self._threads}


def read(url: str) -> Metrics:
    """Reads a page. Raises ConfigurationError, in one sentence, if none answers in time, or with a page of another."""
    where = url if "://" in url else f"http://{url}"
    text = loaded(where if where.count("/") > 2 else f"{where}/metrics", f"--engine {url}")
    return parse(text, url, time.monotonic())


def loaded(where: str, option: str) -> str:
    """The text at an address. Raises ConfigurationError, in one sentence, if it is not there in time."""
    until, text = time.monotonic() + DEADLINE_S, b""
    try:
        with urllib.request.urlopen(where, timeout=DEADLINE_S) as answer:  # noqa: S310 (the user's own address)
            while (more := answer.read1(1 << 16)) and len(text) < MOST_BYTES:
                text += more
                if time.monotonic() > until:
                    raise TimeoutError(LATE)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ConfigurationError(f"{option}: {getattr(error, 'reason', None) or error}") from error
    return text.decode(errors="replace")


def parse(text: str, url: str, seconds: float) -> Metrics:
    """A page's metrics. Raises ConfigurationError for a text that is none."""
    metrics: dict[str, dict[Labels, list[tuple[list[tuple[int, str]], float]]]] = {}
    names, of_ranks, model = dict[str, None](), dict[tuple[str, ...], set[str]](), ""
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.replace(":", "_")
                names[name] = None
                match = KNOWN.search(name)
                if match is None or match[1] not in NAMES or not math.isfinite(sample.value):
                    continue
                labels = {label: value for label, value in sample.labels.items() if value.lower() not in WHOLE}
                model = model or labels.get("model_name", "")
                ranks = tuple(labels.pop(rank, "") for rank in REPEATS)
                of_ranks.setdefault(ranks, set()).add(labels.get("dp_rank", ""))
                order = [(len(rank), rank) for rank in ranks]
                metrics.setdefault(match[1], {}).setdefault(frozenset(labels.items()), []).append((order, sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise ConfigurationError(f"--engine {url}: answers with no page for Prometheus ({str(error)[:80]})") from error
    series = {name: {labels: min(repeats)[1] for labels, repeats in of.items()} for name, of in metrics.items()}
    engines = _engines(series)
    # Under DP attention each dp rank is another tp rank: they share the devices of one engine.
    shared = len(of_ranks) > 1 and all(len(ranks) == 1 for ranks in of_ranks.values())
    owners = {frozenset(pair for pair in labels if not shared or pair[0] != "dp_rank") for labels in engines.values()}
    return Metrics(seconds, model, series, [*names], engines, max(1, len(owners)))


def _engines(series: Mapping[str, Series]) -> dict[str, Labels]:
    """The engines of a page by what tells them apart; none where it is of one."""
    keys = {frozenset(pair for pair in labels if pair[0] in ENGINES) for of in series.values() for labels in of}
    keys = {key for key in keys if not any(key < other for other in keys)}
    if len(keys) < 2:
        return {}
    shared = frozenset.intersection(*keys)
    named = {" ".join(f"{label}={value}" for label, value in sorted(key - shared)): key for key in keys}
    return {name: named[name] for name in sorted(named, key=lambda name: (len(name), name))}
