"""A serving engine by its own page for Prometheus: throughput and latency, and MFU and MBU of the devices behind it."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.core.formats import FORMATS
from mfulab.core.groups import ModelConfig
from mfulab.device.peaks import Peak
from mfulab.loop.goodput.pages import METRICS, Page
from mfulab.mfu.utilization import of_peak, percent, product, ratio, tflop_s, total
from mfulab.models import decoders
from mfulab.models.work import work_of

COLUMNS = (
    *("running", "waiting", "cache_percent", "requests_per_s", "prompt_tokens_per_s", "generated_tokens_per_s"),
    *("ttft_s", "tpot_s", "utilization_percent", "tflop_s", "counted_tflop_s", "read_gb_s", "mbu_percent"),
    *("prefill_mfu_percent", "decode_mfu_percent", "mfu_percent", "attainable_mfu_percent"),
    *("held_percent", "kept_percent"),
)
LENGTHS = (64, 128)  # tokens of the two counts that give any other


def sample_of(
    url: str, before: Page, after: Page, config: ModelConfig | None, precision: str, peak: Peak, devices: int = 1
) -> dict[str, Any]:
    """The columns of an engine between two readings of its page, and in `missing` why some of them are empty. FLOPs are
    the engine's own where it exports them, those of `config` counted here as `counted_tflop_s`; both are of one device
    of the `devices` that share an engine's model. `precision` is that of matmuls and weights. The halves of MFU are of
    the whole time, so that they sum to it."""
    passed, now, devices = after.seconds - before.seconds, after.values, devices * after.owners
    anew = any(now[name] < before.values.get(name, 0) for name in METRICS["counters"] if name in now)

    def grown(name: str) -> float | None:
        # Without --enable-mfu-metrics an engine may export FLOPs and bytes that stay 0.
        lacks = name not in now or name not in before.values or (name in METRICS["of_one_gpu"] and not now[name])
        return None if anew or lacks else now[name] - before.values[name]

    prefill, decode, read = (None, None, None) if config is None else _counted_work(config, precision, grown, now)
    prefill, decode = ratio(prefill, devices), ratio(decode, devices)
    moved = total(grown("read_bytes"), grown("written_bytes"))
    moved = ratio(read, devices) if moved is None else moved
    counted, exported = total(prefill, decode), grown("flops")
    flops = counted if exported is None else exported
    moved_gb_s = ratio(ratio(moved, passed), 1e9)
    share = partial(of_peak, seconds=passed, peak_tflop_s=peak.spec)
    columns: dict[str, Any] = {
        "cache_percent": product(100, now.get("cache")),
        **{f"{name}_per_s": ratio(grown(name), passed) for name in ("requests", "prompt_tokens", "generated_tokens")},
        "ttft_s": ratio(grown("first_tokens_s"), grown("first_tokens")),
        "tpot_s": ratio(grown("next_tokens_s"), grown("next_tokens")),
        "tflop_s": tflop_s(flops, passed),
        "counted_tflop_s": tflop_s(counted, passed),
        "read_gb_s": moved_gb_s,
        "mbu_percent": percent(moved_gb_s, peak.memory_gb_s),
        "prefill_mfu_percent": share(prefill),
        "decode_mfu_percent": share(decode),
        "mfu_percent": share(flops),
        "attainable_mfu_percent": _attainable(flops, prefill, moved, peak),
    }
    columns |= {name: now[name] for name in METRICS["gauges"] if name in COLUMNS and name in now}
    row = {name: columns.get(name) for name in COLUMNS}
    whose = {"page": url, "engine": after.engine, "model": after.model, "precision": precision}
    missing = _missing(row, now, peak, anew) if after.engine != "mfulab" else []
    return {**whose, "replica": after.replica or None, **row, "verdict": _verdict(row), "missing": missing}


def _counted_work(
    config: ModelConfig, precision: str, grown: Callable[[str], float | None], now: Mapping[str, float]
) -> tuple[float | None, float | None, float | None]:
    """FLOPs of prefill and of decoding, and bytes that decoding read, of what `grown` tells of an engine's counters;
    the mean request is that of all counted so far, in `now`. Each is None where the engine does not count its part."""
    first, given, generated, steps = map(grown, ("first_tokens", "prompt_tokens", "generated_tokens", "steps"))
    prompt, answer = (ratio(now.get(name), now.get("first_tokens")) for name in ("prompt_tokens", "generated_tokens"))
    if generated is None or not prompt or answer is None:
        return None, None, None
    context = prompt + answer / 2  # tokens, in the mean, that a decoded one attends to
    decoded = max(0.0, generated - (first or 0))
    prefill = decode = read = None
    if first is not None and given is not None:
        made = given - (grown("cached_tokens") or 0.0)
        token, head = _a_token(config, prompt, "inference")
        # Attention is full; the output layer makes a token that follows, once a request.
        prefill = made * token - max(0.0, made - first) * head
        decode = decoded * _a_token(config, context, "decoding")[0]
    if steps is not None:  # decoding reads weights each step, and each token's cache
        work = _counted(config.model_dump_json(by_alias=True), LENGTHS[1], "decoding")
        cached = decoded * work.cache_elements * context / LENGTHS[1]
        read = (steps * (work.parameters - work.looked_up) + cached) * FORMATS[precision].bytes
    return prefill, decode, read


def _attainable(flops: float | None, prefill: float | None, moved: float | None, peak: Peak) -> float | None:
    """MFU in percent of the same work on the roofline: prefill by FLOPs, decoding by the longer of FLOPs and bytes.

    Without halves all work is taken as one, which then takes less time: prefill's FLOPs hide decoding's bytes.
    """
    if flops is None or moved is None or peak.spec is None or peak.memory_gb_s is None:
        return None
    compute_s, first_s = (part / peak.spec / 1e12 for part in (flops, min(prefill or 0.0, flops)))
    return of_peak(flops, first_s + max(compute_s - first_s, moved / peak.memory_gb_s / 1e9), peak.spec)


def _missing(row: Mapping[str, Any], now: Mapping[str, float], peak: Peak, anew: bool) -> list[str]:
    has_histogram = "first_tokens" in now
    rules = {
        "anew": anew,
        "no_flops": row["tflop_s"] is None and not anew,
        "no_peak": row["tflop_s"] is not None and peak.spec is None,
        "no_halves": row["prefill_mfu_percent"] is None and row["mfu_percent"] is not None,
        "no_bytes": row["read_gb_s"] is None and not anew,
        "no_bandwidth": row["read_gb_s"] is not None and peak.memory_gb_s is None,
        "no_latency": row["ttft_s"] is None and has_histogram,
        "no_histogram": not has_histogram,
    }
    return [key for key, holds in rules.items() if holds]


def _verdict(row: Mapping[str, Any]) -> str:
    """The likely limit, the first that holds: the key of its sentence."""
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


def _a_token(config: ModelConfig, length: float, mode: decoders.Mode) -> tuple[float, float]:
    """FLOPs of a token, which grow with the length along a line, and of its output layer."""
    short, long = (_counted(config.model_dump_json(by_alias=True), tokens, mode) for tokens in LENGTHS)
    low, high = (work.forward_flops / work.tokens for work in (short, long))
    heads = (operation.flops for operation in long.operations if operation.layer.endswith(("lm_head", "embed_out")))
    return low + (high - low) * (length - LENGTHS[0]) / (LENGTHS[1] - LENGTHS[0]), sum(heads) / long.tokens


@cache
def _counted(config: str, length: int, mode: decoders.Mode) -> decoders.Work:
    made = ModelConfig.model_validate_json(config)
    try:
        return decoders.computed(made, length, 1, mode)
    except ConfigurationError:
        return work_of(made, length, 1, mode)
