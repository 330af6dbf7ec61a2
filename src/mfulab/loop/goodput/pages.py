"""Pages for Prometheus, read: which series of a metric are repeats, which are totals, and which are
parts that sum. One rule for all labels. Ranks that share a request repeat it: one of them counts. A
series whose labels are some of another's, with the same values, is the total of the longer ones: an
empty label is none, and so is `all`. What is left are parts; those of an engine's labels are
engines of their own."""

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
NAMES = frozenset(
    name for metrics in METRICS.values() for aliases in metrics.values() for name in aliases
)
MEANS = frozenset({"cache", "utilization_percent", "mfu_percent", "held_percent", "kept_percent"})
REPEATS = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "cp_rank", "attn_tp_rank")
# A rank's process, where an engine's processes share a page; on a page of ours, a program of its own.
PROCESS = "pid"
ENGINES: tuple[str, ...] = ("model_name", "engine", "engine_id", "dp_rank", "WorkerId", "ReplicaId")
ENGINES += ("replica", "worker_id", "instance", "pod")
WHOLE = ("", "all", "total")  # values of a label that stand for every value
KNOWN = re.compile(
    r"(?:^|_)((?:vllm|sglang|mfulab)_.*)"
)  # what a framework, as Ray, puts in front is not read
MOST_SHAPES = 64  # different sets of label names on a page: real ones have some five
LONGEST_LINE = 1 << 14  # the parser's time grows with the square of a line's quotes
DEADLINE_S = 5.0
LATE = Said("page_late", {"seconds": DEADLINE_S})

Labels = frozenset[tuple[str, str]]
Series = Mapping[Labels, float]


@dataclass(frozen=True)
class Page:
    """One reading of an engine, or of all on a page: when, whose, and its known metrics by our
    names."""

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
        pages = dict[str, list[Page]]()
        gone = dict[str, ConfigurationError]()

        def read_page(url: str) -> None:
            where = url if "://" in url else f"http://{url}"
            if where.count("/") == 2:
                where += "/metrics"
            try:
                text = loaded(where, f"--engine {url}")
                pages[url] = parse(text, url, time.monotonic())
            except ConfigurationError as error:
                gone[url] = error

        until = time.monotonic() + DEADLINE_S
        fresh = [url for url, thread in self._threads.items() if not (thread and thread.is_alive())]
        started = {
            url: threading.Thread(target=read_page, args=(url,), daemon=True) for url in fresh
        }
        self._threads |= started
        for thread in started.values():
            thread.start()
        for thread in started.values():
            thread.join(max(0.0, until - time.monotonic()))
        read = dict(pages)  # a late thread may add another
        late = {
            url: ConfigurationError(of_source(f"--engine {url}", LATE))
            for url in self._threads
            if url not in read
        }
        return read, {url: gone.get(url, error) for url, error in late.items()}


def loaded(where: str, option: str, deadline_s: float | None = None) -> str:
    """The text at an address. Raises ConfigurationError, in one sentence, if it is not there in
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
    labels: Labels  # those that tell a part from a total, without the ranks
    ranks: tuple[str, ...]  # values of the labels that tell repeats apart
    value: float


def parse(text: str, url: str, seconds: float) -> list[Page]:
    """The page as a whole, then each engine of several on it. Raises ConfigurationError for a text
    that is no page, or has no known metric."""
    samples = _samples(text, url)
    series = _first_ranks(samples)
    _check_shapes(series, url)
    engines = _engines(series)
    kind = next(
        prefix
        for prefix in ("vllm", "sglang", "mfulab")
        if any(name.startswith(prefix) for name in series)
    )
    named = (dict(sample.labels).get("model_name") for sample in samples)
    model = next(filter(None, named), "")
    pages = [Page(seconds, kind, model, _values(series), owners=_owners(samples, engines))]
    by_engine = _by_engine(series, engines)
    for name, own in engines.items():
        own_model = dict(own).get("model_name", model)
        pages.append(Page(seconds, kind, own_model, _values(by_engine[own]), name))
    return pages


def _samples(text: str, url: str) -> list[Sample]:
    """Lines of known metrics, in order. Raises ConfigurationError if there are none."""
    if max(map(len, text.split("\n"))) > LONGEST_LINE:
        too_long = Said("line_too_long", {"most": LONGEST_LINE})
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
        no_page = Said("no_prometheus_page", {"error": str(error)[:80]})
        raise ConfigurationError(of_source(f"--engine {url}", no_page)) from error
    if not found:
        listed = ", ".join(sorted(names)[:3])
        unknown = Said("unknown_metrics", {"names": listed}) if names else Said("no_metrics")
        raise ConfigurationError(of_source(f"--engine {url}", unknown))
    return found


def _sample(metric: str, labels: Mapping[str, str], value: float) -> Sample:
    told = {}
    for label, each in labels.items():
        if each.lower() not in WHOLE:
            told[label] = each
    repeats = REPEATS if metric.startswith("mfulab_") else (*REPEATS, PROCESS)
    ranks = tuple(told.pop(rank, "") for rank in repeats)
    return Sample(metric, frozenset(told.items()), ranks, value)


def _first_ranks(samples: Iterable[Sample]) -> dict[str, dict[Labels, float]]:
    """Series by metric; of ranks that repeat one, the first rank's."""
    first: dict[str, dict[Labels, Sample]] = {}
    for sample in samples:
        known = first.setdefault(sample.metric, {})
        before = known.get(sample.labels)
        if before is None or _place(sample) < _place(before):
            known[sample.labels] = sample
    return {
        metric: {labels: sample.value for labels, sample in known.items()}
        for metric, known in first.items()
    }


def _place(sample: Sample) -> tuple[list[tuple[int, str]], float]:
    """Orders ranks as numbers are: `9` comes before `10`."""
    return [(len(rank), rank) for rank in sample.ranks], sample.value


def _check_shapes(series: Mapping[str, Series], url: str) -> None:
    """Raises ConfigurationError for more sets of label names than an engine has: each series is
    looked up in all of them."""
    shapes = set[frozenset[str]]()
    for known in series.values():
        shapes.update(map(_names, known))
    if len(shapes) > MOST_SHAPES:
        too_many = Said("too_many_labels", {"count": len(shapes), "most": MOST_SHAPES})
        raise ConfigurationError(of_source(f"--engine {url}", too_many))


def _owners(samples: Iterable[Sample], engines: Mapping[str, Labels]) -> int:
    """Engines with devices of their own. Under DP attention each dp rank is another tp rank: they
    share the devices of one engine."""
    of_ranks = dict[tuple[str, ...], set[str]]()
    for sample in samples:
        of_ranks.setdefault(sample.ranks, set()).add(dict(sample.labels).get("dp_rank", ""))
    is_shared = len(of_ranks) > 1 and all(len(ranks) == 1 for ranks in of_ranks.values())
    left_out = "dp_rank" if is_shared else None
    owners = {
        frozenset(pair for pair in labels if pair[0] != left_out) for labels in engines.values()
    }
    return max(1, len(owners))


def _values(series: Mapping[str, Series]) -> dict[str, float]:
    """Values by our names of series that are all, or of one engine; of a total and its parts the
    total."""
    values = {}
    for kind, metrics in METRICS.items():
        for name, aliases in metrics.items():
            of_alias = (series[metric] for metric in aliases if series.get(metric))
            known = next(of_alias, None)
            if known is None:
                continue
            parts = set(known) - {larger for _, larger in _nested(known)}
            whole = sum(known[part] for part in parts)
            if not math.isfinite(whole):
                continue
            is_mean = kind == "of_one_gpu" or name in MEANS
            values[name] = whole / len(parts) if is_mean else whole
    return values


def _engines(series: Mapping[str, Series]) -> dict[str, Labels]:
    """Labels of a page's engines by what tells them apart; none where the page is of one."""
    keys = set()
    for known in series.values():
        for labels in known:
            keys.add(_engine(labels))
    keys -= {smaller for smaller, _ in _nested(keys)}
    if len(keys) < 2:
        return {}
    shared = frozenset.intersection(*keys)
    named = {
        " ".join(f"{label}={value}" for label, value in sorted(key - shared)): key for key in keys
    }
    return pick_all(named, sorted(named, key=lambda name: (len(name), name)))


def _by_engine(
    series: Mapping[str, Series], engines: Mapping[str, Labels]
) -> dict[Labels, dict[str, dict[Labels, float]]]:
    """Each engine's series by metric."""
    own: dict[Labels, dict[str, dict[Labels, float]]] = {key: {} for key in engines.values()}
    for metric, known in series.items():
        for labels, value in known.items():
            key = _engine(labels)
            if key in own:
                own[key].setdefault(metric, {})[labels] = value
    return own


def _engine(labels: Labels) -> Labels:
    """The labels that tell engines apart."""
    return frozenset(pair for pair in labels if pair[0] in ENGINES)


def _names(labels: Labels) -> frozenset[str]:
    return frozenset(name for name, _ in labels)


def _nested(every: Collection[Labels]) -> Iterator[tuple[Labels, Labels]]:
    """Pairs of which the first is a part of the second: each is looked up under the names of the
    others, of which there are few."""
    shapes = set(map(_names, every))
    for larger in every:
        names = _names(larger)
        for shape in shapes:
            if shape < names:
                smaller = frozenset(pair for pair in larger if pair[0] in shape)
                if smaller in every:
                    yield smaller, larger
