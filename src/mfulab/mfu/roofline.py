"""The time that a device's roofline allows a step, operator by operator, and the memory that it
needs: no measuring."""

from dataclasses import dataclass
from typing import Any

from mfulab.core.errors import ConfigurationError, unknown
from mfulab.core.said import Said, said_by
from mfulab.device.datasheets import Datasheet, UnknownDeviceError, find
from mfulab.device.peaks import UNITS, Peak, peak
from mfulab.flops.memory import training_memory
from mfulab.mfu.utilization import TERA, of_peak
from mfulab.mfu.work import Mode, Work

EVENLY = "Experts: read as often as tokens choose them if routed evenly at random, E·(1 - (1 - k/E)^tokens) of E."


@dataclass(frozen=True)
class Expectation:
    """A step on one device at best: every other operator fused away, where not said otherwise."""

    # training (forward and backward), inference (prefill: the forward pass), decoding (the last
    # token)
    mode: Mode
    flops: float  # that the model needs, attention full
    products_s: (
        float  # of matmuls and attention, each the longer of FLOPs ÷ peak and bytes ÷ bandwidth
    )
    others_s: (
        float | None
    )  # of all other operators: reading and writing memory; None where only a built module tells
    mfu_percent: float
    unfused_mfu_percent: float | None  # the same with no operator fused
    compute_bound_percent: float  # share of `products_s` that FLOPs decide, not bytes
    tokens_per_s: float  # samples where the input is none of tokens
    memory_bytes: (
        float | None
    )  # that each device holds: weights, gradients, Adam's state, activations; or the cache
    fits: bool | None  # whether the device holds that; None if its memory is not known
    assumes: str = ""  # what the time takes for granted


def peak_of(
    device: str, precision: str, instead: Said | None = None
) -> tuple[Datasheet, Peak, float]:
    """A device's datasheet and peak, also in TFLOP/s. Raises ConfigurationError, with what to give
    `instead`."""
    if precision not in UNITS:
        raise unknown("precision", precision, UNITS)
    try:
        sheet = find(device)
    except UnknownDeviceError as error:
        if instead is None:
            raise
        said = Said("with_remedy", {"reason": said_by(error), "instead": instead})
        raise ConfigurationError(f"{error}; {instead}", said) from error
    top = peak(device, precision)
    if top.spec is None:
        source = f"precision={precision}"
        raise ConfigurationError(Said("of_source", {"source": source, "reason": top.reason}))
    return sheet, top, top.spec


def expected(
    counted: Work,
    peak_flop_s: float,
    memory_byte_s: float,
    element_bytes: float,
    capacity: float | None = None,
    devices: int = 1,
) -> Expectation:
    """Expectation from counted work, a peak in FLOP/s, a bandwidth in byte/s and, where known, the
    memory in bytes."""
    products_s = others_s = by_compute_s = 0.0
    for operation in counted.operations:
        compute_s = operation.executed_flops / peak_flop_s
        moving_s = operation.elements * element_bytes / memory_byte_s
        products_s += max(compute_s, moving_s)
        if compute_s >= moving_s:
            by_compute_s += compute_s
        others_s += operation.other_elements * element_bytes / memory_byte_s
    if not products_s:
        raise ConfigurationError(Said("nothing_multiplies"))
    flops = counted.flops("products") + counted.flops("attention")
    whole = counted.saved_elements is not None
    needed = None
    if counted.mode != "training":
        needed = (counted.parameters / devices + counted.cache_elements) * element_bytes
    elif counted.saved_elements is not None:
        kept = max(
            element_bytes, 2
        )  # weights in formats of 16 bits or less are trained with an fp32 copy beside them
        values: Any = {
            "trainable": round(counted.trainable),
            "element_bytes": round(kept),
            "master_copy": kept == 2,
        }
        values["activation_elements"] = round(counted.saved_elements)
        needed = training_memory(round(counted.parameters), **values).sharded(devices).total
    return Expectation(
        mode=counted.mode,
        flops=flops,
        products_s=products_s,
        others_s=others_s if whole else None,
        mfu_percent=of_peak(flops, products_s, peak_flop_s / TERA) or 0.0,
        unfused_mfu_percent=of_peak(flops, products_s + others_s, peak_flop_s / TERA)
        if whole
        else None,
        compute_bound_percent=100 * min(1.0, by_compute_s / products_s),  # sums in two orders
        tokens_per_s=counted.tokens / products_s,
        memory_bytes=needed,
        fits=None if capacity is None or needed is None else needed <= capacity,
        assumes=" ".join(filter(None, (EVENLY if counted.inactive else "", counted.message))),
    )
