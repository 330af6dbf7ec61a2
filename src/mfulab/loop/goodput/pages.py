"""Reads Prometheus pages, and decides which series of a metric are repeats, which are totals, and
which are parts to sum. One rule covers all labels. Ranks that share a request repeat it: one of
them counts. A series is the total of others if its labels are a subset of theirs, with the same
values; an empty label or `all` is no label. The rest are parts; parts with different labels of
engines belong to different engines."""

import itertools
import math
import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from mfulab.core import web
from mfulab.core.data import data
from mfulab.core.errors import ConfigurationError
from mfulab.core.parts import pick_all
from mfulab.core.said import Said, of_source, said_by

METRICS: Mapping[str, Mapping[str, list[str]]] = data(Path(__file__).with_name("engines.yaml"))
_ALIASES = itertools.chain.from_iterable(metrics.values() for metrics in METRICS.values())
NAMES = frozenset(itertools.chain.from_iterable(_ALIASES))
MEANS = frozenset({"cache", "utilization_percent", "mfu_percent", "held_percent", "kept_percent"})
PREFIXES = ("vllm", "sglang", "mfulab")  # prefixes of the metrics of engines, and of our own
REPEATS: tuple[str, ...] = (
    "tp_rank",
    "pp_rank",
    "moe_ep_rank",
    "ep_rank",
    "cp_rank",
    "attn_tp_rank",
)
# Process of a rank, if an engine's processes share a page; on a page of ours, a separate program.
PROCESS = "pid"
ENGINES: tuple[str, ...] = ("model_name", "engine", "engine_id", "dp_rank", "WorkerId", "ReplicaId")
ENGINES += ("replica", "worker_id", "instance", "pod")
WHOLE = ("", "all", "total")  # values of a label that stand for every value
# A prefix that a framework, such as Ray, puts in front is not read.
KNOWN = re.compile(r"(?:^|_)((?:vllm|sglang|mfulab)_.*)")
MOST_SHAPES = 64  # different sets of label names on a page: real ones have some five
LONGEST_LINE = 1 << 14  # the parser's time grows with the square of a line's quotes
DEADLINE_S = 5.0
LATE = Said("page_late", seconds=DEADLINE_S)

Labels = frozenset[tuple[str, str]]
Series = Mapping[Labels, float]


@dataclass(frozen=True)
class Page:
    """One reading of an engine, or of all engines on a page: the time, the engine, its model, and
    its known metrics under our names."""

    seconds: float
    engine: str
    model: str
    values: Mapping[str, float]
    replica: str = ""  # labels that distinguish this engine from the others on its page
    owners: int = 1  # number of engines in `values`, each with devices of its own


class Reader:
    """Reads several pages at once, each within the deadline. A late page is not asked for again
    until it has arrived."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._threads: dict[str, threading.Thread | None] = dict.fromkeys(urls)

    def read(self) -> tuple[dict[str, list[Page]], dict[str, ConfigurationError]]:
        """Returns the pages of each address, and the error in one sentence for each address without
        pages."""
        pages = dict[str, list[Page]]()
        errors = dict[str, ConfigurationError]()

        def read_page(url: str) -> None:
            where = url if "://" in url else f"http://{url}"
            if where.count("/") == 2:
                where += "/metrics"
            try:
                text = loaded(where, f"--engine {url}")
                pages[url] = parse(text, url, time.monotonic())
            except ConfigurationError as error:
                errors[url] = error

        until = time.monotonic() + DEADLINE_S
        started = list[threading.Thread]()
        for url, earlier in self._threads.items():
            if earlier is None or not earlier.is_alive():
                thread = threading.Thread(target=read_page, args=(url,), daemon=True)
                self._threads[url] = thread
                started.append(thread)
                thread.start()
        for thread in started:
            thread.join(max(0.0, until - time.monotonic()))
        read = dict(pages)  # a late thread may add another
        failed = dict[str, ConfigurationError]()
        for url in self._threads:
            if url not in read:
                late = ConfigurationError(of_source(f"--engine {url}", LATE))
                failed[url] = errors.get(url, late)
        return read, failed


def loaded(where: str, option: str, deadline_s: float | None = None) -> str:
    """Text at an address. Raises ConfigurationError, in one sentence, if it does not arrive in
    time."""
    try:
        page = web.fetched(where, DEADLINE_S if deadline_s is None else deadline_s)
    except web.WebError as error:
        raise ConfigurationError(of_source(option, said_by(error))) from error
    return page.decode(errors="replace")


@dataclass(frozen=True)
class Sample:
    """One line of a page that holds a known metric."""

    metric: str
    labels: Labels  # labels that distinguish parts from totals, without those of ranks
    ranks: tuple[str, ...]  # values of the labels that distinguish repeats
    value: float


def parse(text: str, url: str, seconds: float) -> list[Page]:
    """Parses a page. Returns the page as a whole, then each of its engines if there are several.
    Raises ConfigurationError if the text is no page, or has no known metric."""
    samples = _samples(text, url)
    series = _first_ranks(samples)
    _check_shapes(series, url)
    engines = _engines(series)
    kind = _kind(series)
    model = _model(samples)
    pages = [Page(seconds, kind, model, _values(series), owners=_owners(samples, engines))]
    by_engine = _by_engine(series, engines)
    for name, labels in engines.items():
        engine_model = dict(labels).get("model_name", model)
        pages.append(Page(seconds, kind, engine_model, _values(by_engine[labels]), name))
    return pages


def _kind(metrics: Iterable[str]) -> str:
    """Prefix of a page's metrics, an engine's before ours."""
    prefixes = {metric.partition("_")[0] for metric in metrics}
    return min(prefixes, key=PREFIXES.index)


def _model(samples: Iterable[Sample]) -> str:
    """The first model that a page names; "" if it names none."""
    for sample in samples:
        name = dict(sample.labels).get("model_name")
        if name:
            return name
    return ""


def _samples(text: str, url: str) -> list[Sample]:
    """Samples of known metrics, in order. Raises ConfigurationError if there are none."""
    if max(map(len, text.split("\n"))) > LONGEST_LINE:
        too_long = Said("line_too_long", most=LONGEST_LINE)
        raise ConfigurationError(of_source(f"--engine {url}", too_long))
    names = set[str]()
    found = []
    try:
        for family in text_string_to_metric_families(text):
            for line in family.samples:
                name = line.name.replace(":", "_")
                names.add(name)
                match = KNOWN.search(name)
                if match and match[1] in NAMES and math.isfinite(line.value):
                    found.append(_sample(match[1], line.labels, line.value))
    except (ValueError, KeyError, IndexError) as error:
        no_page = Said("no_prometheus_page", error=str(error)[:80])
        raise ConfigurationError(of_source(f"--engine {url}", no_page)) from error
    if not found:
        listed = ", ".join(sorted(names)[:3])
        unknown = Said("unknown_metrics", names=listed) if names else Said("no_metrics")
        raise ConfigurationError(of_source(f"--engine {url}", unknown))
    return found


def _sample(metric: str, labels: Mapping[str, str], value: float) -> Sample:
    repeats = REPEATS
    if not metric.startswith("mfulab_"):
        repeats += (PROCESS,)
    parts = set[tuple[str, str]]()
    ranks = dict.fromkeys(repeats, "")
    for label, text in labels.items():
        if text.lower() in WHOLE:
            continue
        if label in ranks:
            ranks[label] = text
        else:
            parts.add((label, text))
    return Sample(metric, frozenset(parts), tuple(ranks.values()), value)


def _first_ranks(samples: Iterable[Sample]) -> dict[str, dict[Labels, float]]:
    """Series per metric; of series that ranks repeat, the first rank's."""
    first: dict[str, dict[Labels, Sample]] = {}
    for sample in samples:
        known = first.setdefault(sample.metric, {})
        before = known.get(sample.labels)
        if before is None or _rank_order(sample) < _rank_order(before):
            known[sample.labels] = sample
    series = dict[str, dict[Labels, float]]()
    for metric, known in first.items():
        series[metric] = {labels: sample.value for labels, sample in known.items()}
    return series


def _rank_order(sample: Sample) -> tuple[list[tuple[int, str]], float]:
    """Sort key that compares ranks as numbers: `9` comes before `10`."""
    return [(len(rank), rank) for rank in sample.ranks], sample.value


def _check_shapes(series: Mapping[str, Series], url: str) -> None:
    """Raises ConfigurationError if there are more sets of label names than an engine has: each
    series is looked up in all of them."""
    shapes = set[frozenset[str]]()
    for known in series.values():
        shapes.update(map(_names, known))
    if len(shapes) > MOST_SHAPES:
        too_many = Said("too_many_labels", count=len(shapes), most=MOST_SHAPES)
        raise ConfigurationError(of_source(f"--engine {url}", too_many))


def _owners(samples: Iterable[Sample], engines: Mapping[str, Labels]) -> int:
    """Number of engines with devices of their own. Under DP attention each dp rank is another tp
    rank: they share the devices of one engine."""
    of_ranks = dict[tuple[str, ...], set[str]]()
    for sample in samples:
        of_ranks.setdefault(sample.ranks, set()).add(dict(sample.labels).get("dp_rank", ""))
    is_shared = len(of_ranks) > 1 and set(map(len, of_ranks.values())) == {1}
    owners = set[Labels]()
    for labels in engines.values():
        if is_shared:
            labels = frozenset(pair for pair in labels if pair[0] != "dp_rank")
        owners.add(labels)
    return max(1, len(owners))


def _values(series: Mapping[str, Series]) -> dict[str, float]:
    """Values under our names, of all series or of one engine's. If a metric has a total, its parts
    are left out."""
    values = {}
    for kind, metrics in METRICS.items():
        for name, aliases in metrics.items():
            parts = _parts(series, aliases)
            value = sum(parts)
            if not parts or not math.isfinite(value):
                continue
            if kind == "of_one_gpu" or name in MEANS:
                value /= len(parts)
            values[name] = value
    return values


def _parts(series: Mapping[str, Series], aliases: Iterable[str]) -> list[float]:
    """Values to sum of a metric, under the first of its names that the page has, without the parts
    of a total; empty if the page has none."""
    for metric in aliases:
        known = series.get(metric)
        if known:
            parts = set(known)
            for _, larger in _nested(known):
                parts.discard(larger)
            return [known[part] for part in parts]
    return []


def _engines(series: Mapping[str, Series]) -> dict[str, Labels]:
    """Labels of a page's engines, by what distinguishes them; empty if the page has only one."""
    keys = set[Labels]()
    for known in series.values():
        keys.update(map(_engine, known))
    keys.difference_update([smaller for smaller, _ in _nested(keys)])
    if len(keys) < 2:
        return {}
    shared = frozenset.intersection(*keys)
    named = dict[str, Labels]()
    for key in keys:
        name = " ".join(map("=".join, sorted(key - shared)))
        named[name] = key
    return pick_all(named, sorted(named, key=lambda name: (len(name), name)))


def _by_engine(
    series: Mapping[str, Series], engines: Mapping[str, Labels]
) -> dict[Labels, dict[str, dict[Labels, float]]]:
    """Series of each engine, per metric."""
    found = dict[Labels, dict[str, dict[Labels, float]]]()
    for key in engines.values():
        found[key] = {}
    for metric, known in series.items():
        for labels, value in known.items():
            key = _engine(labels)
            if key in found:
                found[key].setdefault(metric, {})[labels] = value
    return found


def _engine(labels: Labels) -> Labels:
    """Labels that distinguish engines."""
    return frozenset(pair for pair in labels if pair[0] in ENGINES)


def _names(labels: Labels) -> frozenset[str]:
    return frozenset(name for name, _ in labels)


def _nested(every: Collection[Labels]) -> Iterator[tuple[Labels, Labels]]:
    """Yields pairs of label sets of which the first is a subset of the second. Each is looked up
    under the names of the others, of which there are few."""
    shapes = set(map(_names, every))
    for larger in every:
        names = _names(larger)
        for shape in shapes:
            if shape < names:
                smaller = frozenset(pair for pair in larger if pair[0] in shape)
                if smaller in every:
                    yield smaller, larger
