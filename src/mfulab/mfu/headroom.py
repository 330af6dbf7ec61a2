"""Milliseconds of a step that are lost between the peak and MFU, as parts that sum to the step; a
part ÷ the step is points of MFU."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NotRequired, Required, TypedDict

from mfulab.core.parts import Row, leave_out
from mfulab.mfu.step import Known

Matmul = tuple[str, tuple[int, ...]]  # number format and class of shape
# From the peak down to MFU, in the order in which the figure takes them off.
_SAME = ("input_wait", "idle", "communication", "copies", "graph", "page_faults")
_OF_PRODUCTS = (
    "clock",
    "tile_padding",
    "slow_instructions",
    "best_below_peak",
    "matmuls_below_best",
    "useful",
)
PARTS = (*_SAME, "other_operators", "recomputation", "uncounted", *_OF_PRODUCTS)
# Kinds of recorded time whose part has another name.
KINDS = {
    "products": "matmuls",
    "recomputed": "recomputation",
    "others": "other_operators",
}
LOST = tuple(part for part in PARTS if part != "useful")
# Kinds of time that may include page faults.
_OF_OPERATORS = ("products", "recomputed", "others", "uncounted")


def headroom(
    spent_ns: Mapping[str, int], useful_ns: Known, *, executed_ratio: Known = None, issued_ratio: Known = None,
    clock_ns: Known = None, best_ns: Known = None,
) -> dict[str, int]:  # fmt: skip
    """Splits a step into parts in whole nanoseconds. Their sum is exactly that of `spent_ns`, the
    exclusive times by kind.

    `useful_ns`: FLOPs that the model needs ÷ peak; None if either is unknown: matmuls are then
    `uncounted`. `executed_ratio`: operations that kernels execute, including padding, ÷ counted
    FLOPs. `issued_ratio`: these at their instructions' own rates ÷ counted FLOPs. `clock_ns`: time
    that a clock below the peak's adds. `best_ns`: time of the FLOPs at the best measured speed;
    None if the peak is that speed. An argument that is None has no part. If the useful part takes
    longer than the traced matmuls, the trace slowed what is around them, which is shortened in
    proportion. `matmuls_below_best` is negative if even the step is shorter; it is not clipped.
    """
    if useful_ns is None:
        return _uncounted(spent_ns)
    spent_ns = _with_useful(spent_ns, round(useful_ns))
    parts = _of_kinds(spent_ns)
    parts["useful"] = round(useful_ns)
    left = spent_ns.get("products", 0) - parts["useful"]
    executed_ns = None
    if executed_ratio is not None:
        executed_ns = useful_ns * executed_ratio
    issued_ns = None
    if issued_ratio is not None:
        issued_ns = useful_ns * issued_ratio
    beyond_ns = {
        "clock": clock_ns,
        "tile_padding": _more(executed_ns, useful_ns),
        "slow_instructions": _more(issued_ns, executed_ns),
    }
    known_ns = sum(time_ns or 0.0 for time_ns in beyond_ns.values())
    beyond_ns["best_below_peak"] = _more(best_ns, useful_ns + known_ns)
    for name, wanted in beyond_ns.items():
        if wanted is None:
            del parts[name]
        else:
            parts[name] = max(0, min(left, round(wanted)))
            left -= parts[name]
    parts["matmuls_below_best"] = left
    return parts


def _more(time_ns: Known, than_ns: Known) -> Known:
    """Nanoseconds by which a time is longer than another; None if one is unknown."""
    if time_ns is None or than_ns is None:
        return None
    return time_ns - than_ns


def _of_kinds(spent_ns: Mapping[str, int]) -> dict[str, int]:
    """Every part, those of a kind of time filled in; page faults only if they were timed."""
    parts = dict.fromkeys(PARTS, 0)
    for kind, time_ns in spent_ns.items():
        if kind != "products":  # these are split further
            parts[KINDS.get(kind, kind)] = time_ns
    if "page_faults" not in spent_ns:
        del parts["page_faults"]
    return parts


def _uncounted(spent_ns: Mapping[str, int]) -> dict[str, int]:
    """The parts if no useful time is known: matmuls are of unknown FLOPs."""
    parts = _of_kinds(spent_ns)
    parts["uncounted"] += spent_ns.get("products", 0)
    return leave_out(parts, _OF_PRODUCTS)


def _with_useful(spent_ns: Mapping[str, int], useful_ns: int) -> Mapping[str, int]:
    """Lengthens the matmuls' time to the useful part, if the step is long enough for it."""
    missing = useful_ns - spent_ns.get("products", 0)
    if missing <= 0 or useful_ns > sum(spent_ns.values()):
        return spent_ns
    others = [name for name in spent_ns if name != "products"]
    return _less(spent_ns, others, missing) | {"products": useful_ns}


Reason = Mapping[str, Mapping[str, object]]  # key and numbers of a sentence


class TracedProduct(TypedDict):
    """Calls of one matmul in a row's column `products`. `best_ns` is their time if all were as fast
    as the fastest."""

    format: str | None
    matmul: Sequence[int] | None  # batch, m, n, k
    flops: float
    time_ns: float
    best_ns: float


class TracedOperator(TypedDict, total=False):
    """Calls of one operator in a row's column `operators`; its last entry sums the rest, without
    names. `flops` are by number format."""

    kind: Required[str]
    operator: str
    shapes: str
    calls: int
    reason: Reason | None  # why FLOPs or bytes are unknown
    time_ns: Required[float]
    kernel_ns: float
    launch_ns: float
    flops: Mapping[str, float] | None
    bytes: float


class OperatorRoof(TypedDict):
    """Roofline of one operator in a step; what is unknown is None."""

    kind: str
    operator: str | None
    shapes: str | None
    calls: int | None
    reason: Reason | None
    time_ms: float
    bound: str | None
    best_ms: float | None
    headroom_ms: float | None
    doubtful: NotRequired[bool]  # True above the roof


def shape_class(batch: int, m: int, n: int, k: int) -> tuple[int, ...]:
    """Key that groups matmuls expected to run at similar speed: sides rounded to powers of two, and
    whether batched."""
    exponents = [round(math.log2(max(1, side))) for side in (m, n, k)]
    return (*exponents, int(batch > 1))


def best_speeds(
    matmuls: Iterable[tuple[str | None, Row]],
) -> dict[str, dict[Matmul, float]]:
    """TFLOP/s of the best joined matmul of each device, per format and class of shape; `matmuls`
    are pairs of device and row."""
    bests: dict[str, dict[Matmul, float]] = {}
    for device, row in matmuls:
        speed = row.get("tflop_s")
        if not device or not speed or row["status"] != "ok":
            continue
        sides = row["m"], row["n"], row["k"]
        if not all(sides):
            continue
        shape = shape_class(row["batch"] or 1, *sides)
        matmul = row.get("effective_precision") or row["precision"], shape
        best = bests.setdefault(device, {})
        best[matmul] = max(speed, best.get(matmul, 0.0))
    return bests


def best_time(
    products: Sequence[TracedProduct], measured: Mapping[Matmul, float]
) -> tuple[Known, str | None]:
    """Returns the matmuls' time at the best speed known for each shape ÷ their time, and the source
    of these speeds: `trace`, `matmul_runs` or `both`. None without matmuls. `measured` are TFLOP/s
    of the best matmul by format and `shape_class`."""
    total_ns = sum(product["time_ns"] for product in products)
    best = 0.0
    sources = set[str]()
    for product in products:
        rate = None
        if product["matmul"]:
            shape = shape_class(*product["matmul"])
            rate = measured.get((product["format"] or "", shape))
        measured_ns = product["flops"] / rate / 1e3 if rate else math.inf
        best += min(measured_ns, product["best_ns"])
        sources |= {"matmul_runs" if measured_ns < product["best_ns"] else "trace"}
    if not total_ns:
        return None, None
    return best / total_ns, sources.pop() if len(sources) == 1 else "both"


def of_operators(
    operators: Sequence[TracedOperator],
    peaks: Mapping[str, float],
    memory_gb_s: Known,
    steps: int,
) -> list[OperatorRoof]:
    """Roofline of each operator of a step, the largest gain first. The best time is the longest of
    three: FLOPs ÷ peak in TFLOP/s (bound by `compute`), bytes ÷ bandwidth in GB/s (`memory`),
    kernels × the shortest kernel (`launch`). Bytes are a lower bound, so the best time is too.
    `headroom_ms` is the kernels' own time − the best time; `doubtful` rows ran above the roof.
    Nothing is clipped."""
    bounded = list[OperatorRoof]()
    unbounded = list[OperatorRoof]()
    for operator in operators:
        roof = OperatorRoof(
            kind=operator["kind"],
            operator=operator.get("operator"),
            shapes=operator.get("shapes"),
            calls=operator.get("calls"),
            reason=operator.get("reason"),
            time_ms=operator["time_ns"] / 1e6 / steps,
            bound=None,
            best_ms=None,
            headroom_ms=None,
        )
        flops = operator.get("flops")
        if flops is None:
            unbounded.append(roof)
        elif not memory_gb_s or flops.keys() - peaks.keys():
            roof["reason"] = {"no_roof": {}}
            unbounded.append(roof)
        else:
            compute_ns = sum(count / peaks[name] for name, count in flops.items()) / 1e3
            times_ns = {"compute": compute_ns, "memory": operator["bytes"] / memory_gb_s}
            times_ns["launch"] = float(operator["launch_ns"])
            bound = max(times_ns, key=lambda name: times_ns[name])
            left_ns = operator["kernel_ns"] - times_ns[bound]
            roof["bound"] = bound
            roof["best_ms"] = times_ns[bound] / 1e6 / steps
            roof["headroom_ms"] = left_ns / 1e6 / steps
            roof["doubtful"] = left_ns < 0
            bounded.append(roof)
    bounded.sort(key=lambda roof: -(roof["headroom_ms"] or 0.0))
    unbounded.sort(key=lambda roof: -roof["time_ms"])
    return bounded + unbounded


def attainable_s(roofs: Sequence[OperatorRoof], executed_ratio: Known = None) -> Known:
    """Seconds of a step if each operator of `of_operators` took its best time, or its own if that
    is unknown, and nothing waited. Known padding of matmuls remains, as operations executed ÷
    counted. None if no matmul has a best time."""
    if not any(roof["bound"] and roof["kind"] == "products" for roof in roofs):
        return None
    total_ms = 0.0
    for roof in roofs:
        if roof["kind"] in ("idle", "input_wait"):
            continue
        best_ms = roof["best_ms"]
        time_ms = roof["time_ms"] if best_ms is None else best_ms
        if roof["kind"] == "products" and roof["bound"] == "compute":
            time_ms *= executed_ratio or 1.0
        total_ms += time_ms
    return total_ms / 1e3


def shared(spent_ns: Mapping[str, int], step_ns: int) -> dict[str, int]:
    """Scales a window's times to one step in whole nanoseconds; idle takes what rounding loses."""
    total_ns = sum(spent_ns.values())
    if not total_ns:
        return {"idle": step_ns}
    scaled = {name: time * step_ns // total_ns for name, time in spent_ns.items()}
    scaled["idle"] = scaled.get("idle", 0) + step_ns - sum(scaled.values())
    return scaled


def all_counted(spent_ns: Mapping[str, int]) -> dict[str, int]:
    """Adds the time of matmuls of unknown FLOPs to `products`: a count of the model includes
    them."""
    products = spent_ns.get("products", 0) + spent_ns.get("uncounted", 0)
    return {**spent_ns, "products": products, "uncounted": 0}


def apart(spent_ns: Mapping[str, int], faults_ns: float) -> dict[str, int]:
    """Takes `page_faults` out of the operators' times, in proportion: a trace does not show which
    operators had them."""
    wanted = min(round(faults_ns), sum(spent_ns.get(name, 0) for name in _OF_OPERATORS))
    return _less(spent_ns, _OF_OPERATORS, wanted) | {"page_faults": wanted}


def _less(spent_ns: Mapping[str, int], names: Sequence[str], wanted: int) -> dict[str, int]:
    """Takes `wanted` ns out of `names`, in proportion and exactly; they hold at least that much."""
    parts = dict(spent_ns)
    before = 0
    taken = 0
    total_ns = sum(spent_ns.get(name, 0) for name in names)
    for name in names:
        before += spent_ns.get(name, 0)
        until = 0
        if total_ns:
            until = before * wanted // total_ns
        parts[name] = spent_ns.get(name, 0) - (until - taken)
        taken = until
    return parts
