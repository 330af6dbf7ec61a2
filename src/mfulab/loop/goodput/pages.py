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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from mfulab.core.data import data
from mfulab.core.errors import ConfigurationError

METRICS: Mapping[str, Mapping[str, list[str]]] = data(Path(__file__).with_name("engines.yaml"))
NAMES = frozenset(name for metrics in METRICS.values() for aliases in metrics.values() for name in aliases)
MEANS = frozenset({"cache", "utilization_percent", "mfu_percent", "held_percent", "kept_percent"})
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
class Page:
    """One reading of an engine, or of all on a page: when, whose, and its known metrics by our names."""

    seconds: float
    engine: str
    model: str
    values: Mapping[str, float]
    replica: str = ""  # what tells this engine from the others of its page
    owners: int = 1  # engines that `values` are of, each with devices of its own


class Reader:
    """Reads pages side by side, each within the deadline; one that is late is waited for once."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._threads: dict[str, threading.Thread | None] = dict.fromkeys(urls)

    def read(self) -> tuple[dict[str, list[Page]], dict[str, ConfigurationError]]:
        """Gives the pages of each address, and in one sentence why others have none."""
        pages, gone = dict[str, list[Page]](), dict[str, ConfigurationError]()

        def read_page(url: str) -> None:
            where = url if "://" in url else f"http://{url}"
            try:
                text = loaded(where if where.count("/") > 2 else f"{where}/metrics", f"--engine {url}")
                pages[url] = parse(text, url, time.monotonic())
            except ConfigurationError as error:
                gone[url] = error

        until = time.monotonic() + DEADLINE_S
        fresh = [url for url, thread in self._threads.items() if not (thread and thread.is_alive())]
        started = {url: threading.Thread(target=read_page, args=(url,), daemon=True) for url in fresh}
        self._threads |= started
        for thread in started.values():
            thread.start()
        for thread in started.values():
            thread.join(max(0.0, until - time.monotonic()))
        read = dict(pages)  # a late thread may add another
        late = {url: ConfigurationError(f"--engine {url}: {LATE}") for url in self._threads if url not in read}
        return read, {url: gone.get(url, error) for url, error in late.items()}


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


def parse(text: str, url: str, seconds: float) -> list[Page]:
    """The page as a whole, then each engine of several on it. Raises ConfigurationError for a text that is no page, or
    has no known metric."""
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
    if not metrics:
        why = "has no metric of vLLM, SGLang or mfulab that is known here, but"
        raise ConfigurationError(f"--engine {url}: {why} {', '.join(sorted(names)[:3]) or 'nothing'}")
    series = {name: {labels: min(repeats)[1] for labels, repeats in of.items()} for name, of in metrics.items()}
    engines = _engines(series)
    # Under DP attention each dp rank is another tp rank: they share the devices of one engine.
    shared = len(of_ranks) > 1 and all(len(ranks) == 1 for ranks in of_ranks.values())
    owners = {frozenset(pair for pair in labels if not shared or pair[0] != "dp_rank") for labels in engines.values()}
    kind = next(prefix for prefix in ("vllm", "sglang", "mfulab") if any(name.startswith(prefix) for name in series))
    pages = [Page(seconds, kind, model, _values(series, Labels()), owners=max(1, len(owners)))]
    for name, own in engines.items():
        pages.append(Page(seconds, kind, dict(own).get("model_name", model), _values(series, own), name))
    return pages


def _values(series: Mapping[str, Series], engine: Labels) -> dict[str, float]:
    """Values of the metrics of an engine, or of all without labels; of a total and its parts the total."""
    values = {}
    for kind, metrics in METRICS.items():
        for name, aliases in metrics.items():
            for metric in aliases:
                own = {part: value for part, value in series.get(metric, {}).items() if engine <= part}
                if parts := [value for part, value in own.items() if not any(other < part for other in own)]:
                    values[name] = sum(parts) / (len(parts) if kind == "of_one_gpu" or name in MEANS else 1)
                    break
    return values


def _engines(series: Mapping[str, Series]) -> dict[str, Labels]:
    """Labels of a page's engines by what tells them apart; none where the page is of one."""
    keys = {frozenset(pair for pair in labels if pair[0] in ENGINES) for of in series.values() for labels in of}
    keys = {key for key in keys if not any(key < other for other in keys)}
    if len(keys) < 2:
        return {}
    shared = frozenset.intersection(*keys)
    named = {" ".join(f"{label}={value}" for label, value in sorted(key - shared)): key for key in keys}
    return {name: named[name] for name in sorted(named, key=lambda name: (len(name), name))}
