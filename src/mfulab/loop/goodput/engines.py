"""Measures a serving engine by its page for Prometheus: throughput, latency, and MFU and MBU of the
devices behind it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

from mfulab.core.errors import ConfigurationError
from mfulab.core.formats import FORMATS
from mfulab.core.groups import ModelConfig
from mfulab.core.parts import Row, pick_present
from mfulab.device.peaks import Peak
from mfulab.loop.goodput.pages import METRICS, Page
from mfulab.mfu.utilization import (
    GIGA,
    TERA,
    of_peak,
    percent,
    product,
    ratio,
    roof,
    tflop_s,
    total,
)
from mfulab.models import decoders
from mfulab.models.work import work_of

COLUMNS = (
    "running",
    "waiting",
    "cache_percent",
    "requests_per_s",
    "prompt_tokens_per_s",
    "generated_tokens_per_s",
    "ttft_s",
    "tpot_s",
    "utilization_percent",
    "tflop_s",
    "counted_tflop_s",
    "read_gb_s",
    "mbu_percent",
    "prefill_mfu_percent",
    "decode_mfu_percent",
    "mfu_percent",
    "attainable_mfu_percent",
    "held_percent",
    "kept_percent",
)
LENGTHS = (64, 128)  # tokens: costs at these two lengths give the cost at any other


def sample_of(
    url: str,
    before: Page,
    after: Page,
    config: ModelConfig | None,
    precision: str,
    peak: Peak,
    devices: int = 1,
) -> dict[str, object]:
    """Columns of an engine between two readings of its page, with `missing`: why some of them are
    empty. FLOPs are the engine's own if it exports them; those counted from `config` are
    `counted_tflop_s`. Both are of one of the `devices` that share an engine's model. `precision` is
    that of matmuls and weights. MFU of prefill and of decoding is over the whole time, so that the
    two sum to MFU."""
    now = after.values
    passed = after.seconds - before.seconds
    growth = _Growth(before.values, now)
    grown = growth.of
    work = _of_one_device(config, precision, growth, devices * after.owners)
    counted = total(work.prefill, work.decode)
    exported = grown("flops")
    flops = counted if exported is None else exported
    moved_gb_s = ratio(ratio(work.moved, passed), 1e9)
    share = partial(of_peak, seconds=passed, peak_tflop_s=peak.spec)
    columns: dict[str, object] = {
        "cache_percent": product(100, now.get("cache")),
        "requests_per_s": ratio(grown("requests"), passed),
        "prompt_tokens_per_s": ratio(grown("prompt_tokens"), passed),
        "generated_tokens_per_s": ratio(grown("generated_tokens"), passed),
        "ttft_s": ratio(grown("first_tokens_s"), grown("first_tokens")),
        "tpot_s": ratio(grown("next_tokens_s"), grown("next_tokens")),
        "tflop_s": tflop_s(flops, passed),
        "counted_tflop_s": tflop_s(counted, passed),
        "read_gb_s": moved_gb_s,
        "mbu_percent": percent(moved_gb_s, peak.memory_gb_s),
        "prefill_mfu_percent": share(work.prefill),
        "decode_mfu_percent": share(work.decode),
        "mfu_percent": share(flops),
        "attainable_mfu_percent": _attainable(flops, work.prefill, work.moved, peak),
    }
    columns |= pick_present(now, METRICS["gauges"])
    row = {name: columns.get(name) for name in COLUMNS}
    missing = list[str]()
    if after.engine != "mfulab":
        missing = _missing(row, now, peak, growth.has_restarted)
    return {
        "page": url,
        "engine": after.engine,
        "model": after.model,
        "precision": precision,
        "replica": after.replica or None,
        **row,
        "verdict": _verdict(row),
        "missing": missing,
    }


class _Growth:
    """Growth of an engine's counters between two readings of its page."""

    def __init__(self, before: Mapping[str, float], now: Mapping[str, float]) -> None:
        self.before = before
        self.now = now
        self.has_restarted = False
        for name in METRICS["counters"]:
            if name in now and now[name] < before.get(name, 0):
                self.has_restarted = True

    def of(self, name: str) -> float | None:
        """Growth of a counter; None if the page lacks it, or if the engine has restarted."""
        if self.has_restarted or name not in self.now or name not in self.before:
            return None
        # Without --enable-mfu-metrics an engine may export FLOPs and bytes that stay 0.
        if name in METRICS["of_one_gpu"] and not self.now[name]:
            return None
        return self.now[name] - self.before[name]

    def of_request(self, name: str) -> float | None:
        """Counter ÷ requests, as the mean of all requests so far; None if unknown."""
        return ratio(self.now.get(name), self.now.get("first_tokens"))


@dataclass(frozen=True)
class _Served:
    """FLOPs of prefill and of decoding, and bytes moved; None if not counted."""

    prefill: float | None = None
    decode: float | None = None
    moved: float | None = None


def _of_one_device(
    config: ModelConfig | None, precision: str, growth: _Growth, devices: int
) -> _Served:
    """Work of one of the devices that share a model; bytes are the engine's own if it exports
    them."""
    counted = _Served() if config is None else _counted_work(config, precision, growth)
    moved = total(growth.of("read_bytes"), growth.of("written_bytes"))
    if moved is None:
        moved = ratio(counted.moved, devices)
    return _Served(ratio(counted.prefill, devices), ratio(counted.decode, devices), moved)


def _counted_work(config: ModelConfig, precision: str, growth: _Growth) -> _Served:
    """Work counted from an engine's counters; the mean request is that of all requests so far."""
    first = growth.of("first_tokens")
    prompt_tokens = growth.of("prompt_tokens")
    generated = growth.of("generated_tokens")
    steps = growth.of("steps")
    prompt = growth.of_request("prompt_tokens")
    answer = growth.of_request("generated_tokens")
    if generated is None or not prompt or answer is None:
        return _Served()
    context = prompt + answer / 2  # mean number of tokens that a decoded one attends to
    decoded = max(0.0, generated - (first or 0))
    prefill = decode = read = None
    if first is not None and prompt_tokens is not None:
        computed = prompt_tokens - (growth.of("cached_tokens") or 0.0)
        token, head = _token_flops(config, prompt, "inference")
        # Attention is full; the output layer runs once per request, for the token that follows.
        prefill = computed * token - max(0.0, computed - first) * head
        decode = decoded * _token_flops(config, context, "decoding")[0]
    if steps is not None:  # decoding reads the weights in each step, and the cache for each token
        work = _counted(config.model_dump_json(by_alias=True), LENGTHS[1], "decoding")
        cached = decoded * work.cache_elements * context / LENGTHS[1]
        read = (steps * (work.parameters - work.looked_up) + cached) * FORMATS[precision].bytes
    return _Served(prefill, decode, read)


def _attainable(
    flops: float | None, prefill: float | None, moved: float | None, peak: Peak
) -> float | None:
    """MFU in percent of the same work on the roofline, with prefill limited by FLOPs, and decoding
    by the slower of FLOPs and bytes. None if unknown.

    If the halves are unknown, all work is one. That takes less time: prefill's FLOPs hide
    decoding's bytes.
    """
    if flops is None or moved is None or peak.spec is None or peak.memory_gb_s is None:
        return None
    peak_flop_s = TERA * peak.spec
    prefill_flops = min(prefill or 0.0, flops)
    decoding = roof(flops - prefill_flops, peak_flop_s, moved, GIGA * peak.memory_gb_s)
    return of_peak(flops, prefill_flops / peak_flop_s + decoding.seconds, peak.spec)


def _missing(
    row: Mapping[str, object], now: Mapping[str, float], peak: Peak, has_restarted: bool
) -> list[str]:
    """Message keys of the reasons why columns are empty."""
    has_histogram = "first_tokens" in now
    rules = {
        "anew": has_restarted,
        "no_flops": row["tflop_s"] is None and not has_restarted,
        "no_peak": row["tflop_s"] is not None and peak.spec is None,
        "no_halves": row["prefill_mfu_percent"] is None and row["mfu_percent"] is not None,
        "no_bytes": row["read_gb_s"] is None and not has_restarted,
        "no_bandwidth": row["read_gb_s"] is not None and peak.memory_gb_s is None,
        "no_latency": row["ttft_s"] is None and has_histogram,
        "no_histogram": not has_histogram,
    }
    return [key for key, holds in rules.items() if holds]


def _verdict(row: Row) -> str:
    """Message key of the likely limit: the first rule that holds."""
    at = {name: row[name] or 0.0 for name in COLUMNS}
    rules = {
        "idle": not at["running"] and not at["waiting"] and not at["generated_tokens_per_s"],
        "cache_full": at["waiting"] > 0 and at["cache_percent"] >= 90,
        "arithmetic": at["mfu_percent"] >= 40,
        "bandwidth": at["mbu_percent"] >= 50,
        "queued": at["waiting"] > 0,
        "small_batch": True,
    }
    return next(key for key, holds in rules.items() if holds)


def _token_flops(config: ModelConfig, length: float, mode: decoders.Mode) -> tuple[float, float]:
    """FLOPs of one token, linear in the length, and FLOPs of its output layer."""
    text = config.model_dump_json(by_alias=True)
    short, long = (_counted(text, tokens, mode) for tokens in LENGTHS)
    low = short.forward_flops / short.tokens
    high = long.forward_flops / long.tokens
    slope = (high - low) / (LENGTHS[1] - LENGTHS[0])
    head_flops: float = 0
    for operation in long.operations:
        if operation.layer.endswith(("lm_head", "embed_out")):
            head_flops += operation.flops
    return low + slope * (length - LENGTHS[0]), head_flops / long.tokens


@cache
def _counted(config: str, length: int, mode: decoders.Mode) -> decoders.Work:
    """Work of one sequence of `length` tokens."""
    model = ModelConfig.model_validate_json(config)
    try:
        return decoders.computed(model, length, 1, mode)
    except ConfigurationError:
        return work_of(model, length, 1, mode)
