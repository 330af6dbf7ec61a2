"""A serving engine by its own page for Prometheus: throughput and latency, and MFU and MBU of the devices behind it."""

import http.client
import math
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from mfulab.core.errors import ConfigurationError
from mfulab.core.formats import FORMATS
from mfulab.core.groups import ModelConfig
from mfulab.device.peaks import Peak
from mfulab.mfu import decoders
from mfulab.mfu.utilization import of_peak, percent, product, ratio, tflop_s, total

METRICS: Mapping[str, Mapping[str, list[str]]] = yaml.safe_load(
    Path(__file__).with_name("engines.yaml").read_text(encoding="utf-8")
)
MEANS = frozenset({"cache", "utilization_percent", "mfu_percent", "held_percent", "kept_percent"})
SHARDS = ("tp_rank", "pp_rank", "moe_ep_rank")  # all ranks of an engine report the same requests
COLUMNS = (
    *("running", "waiting", "cache_percent", "requests_per_s", "prompt_tokens_per_s", "generated_tokens_per_s"),
    *("ttft_s", "tpot_s", "utilization_percent", "tflop_s", "counted_tflop_s", "read_gb_s", "mbu_percent"),
    *("prefill_mfu_percent", "decode_mfu_percent", "mfu_percent", "held_percent", "kept_percent"),
)
TIMEOUT_S, MOST_BYTES = 5.0, 1 << 25
LENGTHS = (64, 128)  # tokens of the two counts that give any other

Reading = Mapping[str, float]


@dataclass(frozen=True)
class Page:
    """One reading of a page: when, whose, and its known metrics by our names."""

    seconds: float
    engine: str
    model: str
    values: Reading


def read(url: str) -> Page:
    """Reads a page. Raises ConfigurationError, in one sentence, if none answers, or with a page of something else."""
    where = url if "://" in url else f"http://{url}"
    where = where if where.count("/") > 2 else f"{where}/metrics"
    try:
        with urllib.request.urlopen(where, timeout=TIMEOUT_S) as answer:  # noqa: S310 (the user's own address)
            text = answer.read(MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ConfigurationError(f"--engine {url}: {getattr(error, 'reason', None) or error}") from error
    return parse(text, url, time.monotonic())


def parse(text: str, url: str, seconds: float) -> Page:
    """A page's known metrics. Raises ConfigurationError for a text that is none, or has none of them."""
    series: dict[str, list[float]] = {}
    model = ""
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if all(sample.labels.get(rank, "0") == "0" for rank in SHARDS) and math.isfinite(sample.value):
                    series.setdefault(sample.name.replace(":", "_"), []).append(sample.value)
                    model = model or sample.labels.get("model_name", "")
    except (ValueError, KeyError, IndexError) as error:
        raise ConfigurationError(f"--engine {url}: answers with no page for Prometheus ({str(error)[:80]})") from error
    values = {}
    for kind, metrics in METRICS.items():
        for name, known in metrics.items():
            found = next((series[metric] for metric in known if metric in series), None)
            if found is not None:
                mean = kind == "of_one_gpu" or name in MEANS
                values[name] = sum(found) / (len(found) if mean else 1)
    if not values:
        some = ", ".join(sorted(series)[:3]) or "nothing"
        raise ConfigurationError(
            f"--engine {url}: has no metric of vLLM, SGLang or mfulab that is known here, but {some}"
        )
    engine = next((each for each in ("vllm", "sglang", "mfulab") if any(name.startswith(each) for name in series)), "")
    return Page(seconds, engine, model, values)


def sample_of(
    url: str, before: Page, after: Page, config: ModelConfig | None, precision: str, peak: Peak, devices: int = 1
) -> dict[str, Any]:
    """The columns of an engine between two readings of its page, and in `missing` why some of them are empty.

    FLOPs are the engine's own where it exports them, and those of `config` counted here as `counted_tflop_s`; both are
    of one device, as `peak` is, of the `devices` that share the model. `precision` is that of matmuls and weights. The
    halves of MFU are of the whole time, so that they sum to it.
    """
    passed, now = after.seconds - before.seconds, after.values
    anew = any(now[each] < before.values.get(each, 0) for each in METRICS["counters"] if each in now)

    def grown(name: str) -> float | None:
        # Without --enable-mfu-metrics an engine may export FLOPs and bytes that stay 0.
        lacks = name not in now or name not in before.values or (name in METRICS["of_one_gpu"] and not now[name])
        return None if anew or lacks else now[name] - before.values[name]

    first, given, generated = grown("first_tokens"), grown("prompt_tokens"), grown("generated_tokens")
    prefill = decode = None
    moved, steps = total(grown("read_bytes"), grown("written_bytes")), grown("steps")
    if config is not None and generated is not None and (lengths := _lengths(now)):
        decoded = max(0.0, generated - (first or 0))
        if first is not None and given is not None:
            made = given - (grown("cached_tokens") or 0.0)
            prefill, decode = (ratio(each, devices) for each in _work(config, lengths, made, first, decoded))
        if moved is None and steps is not None:
            moved = ratio(_bytes(config, lengths[1], precision, steps, decoded), devices)
    counted, exported = total(prefill, decode), grown("flops")
    flops = counted if exported is None else exported
    moved_gb_s = ratio(ratio(moved, passed), 1e9)
    share = partial(of_peak, seconds=passed, peak_tflop_s=peak.spec)
    found: dict[str, Any] = {
        "cache_percent": product(100, now.get("cache")),
        "requests_per_s": ratio(grown("requests"), passed),
        "prompt_tokens_per_s": ratio(given, passed),
        "generated_tokens_per_s": ratio(generated, passed),
        "ttft_s": ratio(grown("first_tokens_s"), first),
        "tpot_s": ratio(grown("next_tokens_s"), grown("next_tokens")),
        "tflop_s": tflop_s(flops, passed),
        "counted_tflop_s": tflop_s(counted, passed),
        "read_gb_s": moved_gb_s,
        "mbu_percent": percent(moved_gb_s, peak.memory_gb_s),
        "prefill_mfu_percent": share(prefill),
        "decode_mfu_percent": share(decode),
        "mfu_percent": share(flops),
    }
    found |= {name: now[name] for name in METRICS["gauges"] if name in COLUMNS and name in now}
    row = {name: found.get(name) for name in COLUMNS}
    whose = {"page": url, "engine": after.engine, "model": after.model, "precision": precision}
    missing = _missing(row, now, peak, anew) if after.engine != "mfulab" else []
    return {**whose, **row, "verdict": _verdict(row), "missing": missing}


def _missing(row: Mapping[str, Any], now: Reading, peak: Peak, anew: bool) -> list[str]:
    """Keys of the sentences that say why columns are empty."""
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


def _work(
    config: ModelConfig, lengths: tuple[float, float], made: float, first: float, decoded: float
) -> tuple[float, float]:
    """FLOPs of prefill of `made` tokens and of decoding, attention full, the output layer once a token that is made."""
    token, head = _a_token(config, lengths[0], "inference")
    once, _ = _a_token(config, lengths[1], "decoding")
    return made * token - max(0.0, made - first) * head, decoded * once


def _bytes(config: ModelConfig, context: float, precision: str, steps: float, decoded: float) -> float:
    """Weights of each scheduler's step and the cache of each decoded token: what decoding has to read."""
    work = _counted(config.model_dump_json(by_alias=True), LENGTHS[1], "decoding")
    cached = decoded * work.cache_elements * context / LENGTHS[1]
    return (steps * (work.parameters - work.looked_up) + cached) * FORMATS[precision].bytes


def _lengths(now: Reading) -> tuple[float, float] | None:
    """Tokens of a mean prompt, and those that a mean decoded token attends to; None without a request.

    Means over the engine's life: prompt tokens ÷ first tokens, and half of the generated ones behind them.
    """
    prompt = ratio(now.get("prompt_tokens"), now.get("first_tokens"))
    answer = ratio(now.get("generated_tokens"), now.get("first_tokens"))
    return (prompt, prompt + answer / 2) if prompt and answer is not None else None


def _a_token(config: ModelConfig, length: float, mode: decoders.Mode) -> tuple[float, float]:
    """FLOPs of a token, which grow with the length along a line, and of its output layer."""
    short, long = (_counted(config.model_dump_json(by_alias=True), each, mode) for each in LENGTHS)
    low, high = (each.forward_flops / each.tokens for each in (short, long))
    heads = (each.flops for each in long.operations if each.layer.endswith(("lm_head", "embed_out")))
    return low + (high - low) * (length - LENGTHS[0]) / (LENGTHS[1] - LENGTHS[0]), sum(heads) / long.tokens


@cache
def _counted(config: str, length: int, mode: decoders.Mode) -> decoders.Work:
    """Work computed from a plain decoder's dimensions, else counted."""
    made = ModelConfig.model_validate_json(config)
    try:
        return decoders.computed(made, length, 1, mode)
    except ConfigurationError:
        return decoders.work_of(made, length, 1, mode)
