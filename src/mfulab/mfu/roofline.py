"""Time that a device's roofline allows for a step, operator by operator, and the memory that the
step needs, without measuring."""

from dataclasses import dataclass

from mfulab.core.errors import ConfigurationError, unknown
from mfulab.core.said import Said, said_by
from mfulab.device.datasheets import Datasheet, UnknownDeviceError, find
from mfulab.device.peaks import UNITS, Peak, peak
from mfulab.flops.memory import training_memory
from mfulab.mfu.utilization import TERA, of_peak, roof
from mfulab.mfu.work import Mode, Work

EVENLY = "Experts: read as often as tokens choose them if routed evenly at random, E·(1 - (1 - k/E)^tokens) of E."


@dataclass(frozen=True)
class Expectation:
    """Best case of a step on one device; every other operator is fused away unless stated
    otherwise."""

    # training (forward and backward), inference (prefill: the forward pass), decoding (the last
    # token)
    mode: Mode
    flops: float  # FLOPs that the model needs, with full attention
    # time of matmuls and attention, each the longer of FLOPs ÷ peak and bytes ÷ bandwidth
    products_s: float
    # time of all other operators to read and write memory; None unless a module was built
    others_s: float | None
    mfu_percent: float
    unfused_mfu_percent: float | None  # the same if no operator is fused
    compute_bound_percent: float  # share of `products_s` that FLOPs decide, not bytes
    tokens_per_s: float  # samples if the input is no tokens
    # bytes on each device: weights, and gradients, Adam's state and activations, or the cache
    memory_bytes: float | None
    fits: bool | None  # whether the device has that much; None if its memory is unknown
    assumes: str = ""  # assumptions of the time


def peak_of(
    device: str, precision: str, instead: Said | None = None
) -> tuple[Datasheet, Peak, float]:
    """A device's datasheet, its peak, and the peak in TFLOP/s. Raises ConfigurationError if it is
    unknown, with advice on what to give `instead`."""
    if precision not in UNITS:
        raise unknown("precision", precision, UNITS)
    try:
        sheet = find(device)
    except UnknownDeviceError as error:
        if instead is None:
            raise
        reason = Said("with_remedy", reason=said_by(error), instead=instead)
        raise ConfigurationError(f"{error}; {instead}", reason) from error
    top = peak(device, precision)
    if top.spec is None:
        source = f"precision={precision}"
        raise ConfigurationError(Said("of_source", source=source, reason=top.reason))
    return sheet, top, top.spec


def expected(
    counted: Work,
    peak_flop_s: float,
    memory_byte_s: float,
    element_bytes: float,
    capacity: float | None = None,
    devices: int = 1,
) -> Expectation:
    """Expectation from counted work, a peak in FLOP/s, a bandwidth in byte/s and, if known, the
    device's memory in bytes. Raises ConfigurationError if nothing multiplies."""
    products_s = others_s = by_compute_s = 0.0
    for operation in counted.operations:
        moved = operation.elements * element_bytes
        bound = roof(operation.executed_flops, peak_flop_s, moved, memory_byte_s)
        products_s += bound.seconds
        if bound.by_compute:
            by_compute_s += bound.compute_s
        others_s += operation.other_elements * element_bytes / memory_byte_s
    if not products_s:
        raise ConfigurationError(Said("nothing_multiplies"))
    flops = counted.flops("products") + counted.flops("attention")
    is_built = counted.saved_elements is not None
    needed = None
    if counted.mode != "training":
        needed = (counted.parameters / devices + counted.cache_elements) * element_bytes
    elif counted.saved_elements is not None:
        # Weights in formats of 16 bits or less are trained with a copy in fp32.
        kept_bytes = max(element_bytes, 2)
        memory = training_memory(
            round(counted.parameters),
            trainable=round(counted.trainable),
            element_bytes=round(kept_bytes),
            master_copy=kept_bytes == 2,
            activation_elements=round(counted.saved_elements),
        )
        needed = memory.sharded(devices).total
    assumptions = [counted.message]
    if counted.inactive:
        assumptions.insert(0, EVENLY)
    unfused_mfu = None
    if is_built:
        unfused_mfu = of_peak(flops, products_s + others_s, peak_flop_s / TERA)
    return Expectation(
        mode=counted.mode,
        flops=flops,
        products_s=products_s,
        others_s=others_s if is_built else None,
        mfu_percent=of_peak(flops, products_s, peak_flop_s / TERA) or 0.0,
        unfused_mfu_percent=unfused_mfu,
        compute_bound_percent=100 * min(1.0, by_compute_s / products_s),  # rounding may exceed 1
        tokens_per_s=counted.tokens / products_s,
        memory_bytes=needed,
        fits=None if capacity is None or needed is None else needed <= capacity,
        assumes=" ".join(filter(None, assumptions)),
    )
