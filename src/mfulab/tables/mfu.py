"""MFU against each peak that could stand under it: spec, highest clock, actual clock, measured; and MBU."""

from collections.abc import Mapping


def mfu_columns(
    tflop_s: float | None, ceiling: Mapping[str, float | None], clock_mhz: float | None, gpu: bool
) -> dict[str, float | str | None]:
    """MFU of a rate in TFLOP/s, in percent, by denominator; None where a denominator is unknown, never clipped at 100.

    Args:
        tflop_s: FLOPs that the model needs ÷ time.
        ceiling: a row of the ceilings table in the run's effective precision: `computed_tflop_s`,
            `computed_clock_mhz`, `max_clock_tflop_s`, `measured_tflop_s`.
        clock_mhz: the mean clock during the run; the peak scales with it.
        gpu: a GPU's MFU is against its spec peak; a CPU's against the measured ceiling, since turbo is not told there.
    """
    spec, spec_clock = ceiling.get("computed_tflop_s"), ceiling.get("computed_clock_mhz")
    actual = spec * clock_mhz / spec_clock if spec and spec_clock and clock_mhz else None
    denominators = {
        "mfu_spec_percent": spec,
        "mfu_max_clock_percent": ceiling.get("max_clock_tflop_s"),
        "mfu_actual_clock_percent": actual,
        "mfu_measured_percent": ceiling.get("measured_tflop_s"),
    }
    columns: dict[str, float | str | None] = {
        name: 100 * tflop_s / peak if tflop_s is not None and peak and peak > 0 else None
        for name, peak in denominators.items()
    }
    basis = "spec" if gpu else "measured"
    columns["mfu_percent"] = columns[f"mfu_{basis}_percent"]
    columns["mfu_basis"] = basis if denominators[f"mfu_{basis}_percent"] is not None else None
    return columns


def mbu_percent(
    parameter_bytes: float | None, cache_bytes: float | None, time_s: float | None, memory_gb_s: float | None
) -> float | None:
    """Model bandwidth utilization of one forward pass: bytes of parameters and KV cache ÷ time ÷ memory bandwidth.

    Each parameter is read at least once a pass (of a mixture of experts, where tokens enough reach every expert). The
    measure for decoding, where a pass makes one token for each sequence of the batch (Agarwal et al. 2023,
    "LLM Inference Performance Engineering: Best Practices", Databricks).
    """
    if parameter_bytes is None or cache_bytes is None or not time_s or not memory_gb_s:
        return None
    return 100 * (parameter_bytes + cache_bytes) / time_s / (memory_gb_s * 1e9)
