"""Lost milliseconds of a step between the peak and MFU: parts that sum to it; a part ÷ the step is
points of MFU."""

import math
from collections.abc import Iterable, Mapping, Sequence

from mfulab.core.parts import Record, Row, leave_out

Known = float | None
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
# Kinds of recorded time whose part, and word, has another name.
KINDS = {
    "products": "matmuls",
    "recomputed": "recomputation",
    "others": "other_operators",
}
LOST = tuple(part for part in PARTS if part != "useful")
_OF_OPERATORS = (
    "products",
    "recomputed",
    "others",
    "uncounted",
)  # times in which page faults may lie


def headroom(
    spent_ns: Mapping[str, int], useful_ns: Known, *, executed_ratio: Known = None, issued_ratio: Known = None,
    clock_ns: Known = None, best_ns: Known = None,
) -> dict[str, int]:  # fmt: skip
    """Parts of a step in whole nanoseconds; their sum is that of `spent_ns`, exclusive times by
    kind, exactly.

    `useful_ns`: FLOPs that the model needs ÷ peak; None where either is unknown: matmuls are then
    `uncounted`. `executed_ratio`: operations that kernels execute, padding included ÷ FLOPs
    counted; `issued_ratio`: these at their instructions' own rates ÷ FLOPs counted. `clock_ns`:
    what a clock below the peak's adds. `best_ns`: the FLOPs at the best speed measured; None where
    the peak is that speed. What is None has no part. Where the useful part takes longer than the
    traced matmuls, the trace slowed what stands around them, which yields in proportion.
    `matmuls_below_best` is negative where even the step is shorter: shown rather than clipped."""
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
    """Nanoseconds by which a time is longer than another; None where one is unknown."""
    if time_ns is None or than_ns is None:
        return None
    return time_ns - than_ns


def _of_kinds(spent_ns: Mapping[str, int]) -> dict[str, int]:
    """Every part, those of a kind of time filled; page faults only where they were timed."""
    parts = dict.fromkeys(PARTS, 0)
    for kind, time_ns in spent_ns.items():
        if kind != "products":  # which are taken apart
            parts[KINDS.get(kind, kind)] = time_ns
    if "page_faults" not in spent_ns:
        del parts["page_faults"]
    return parts


def _uncounted(spent_ns: Mapping[str, int]) -> dict[str, int]:
    """The parts where no useful time is known: matmuls are of unknown FLOPs."""
    parts = _of_kinds(spent_ns)
    parts["uncounted"] += spent_ns.get("products", 0)
    return leave_out(parts, _OF_PRODUCTS)


def _with_useful(spent_ns: Mapping[str, int], useful_ns: int) -> Mapping[str, int]:
    """Times whose matmuls take at least the useful part, where the step is long enough for it."""
    missing = useful_ns - spent_ns.get("products", 0)
    if missing <= 0 or useful_ns > sum(spent_ns.values()):
        return spent_ns
    around = []
    for name in spent_ns:
        if name != "products":
            around.append(name)
    return _less(spent_ns, around, missing) | {"products": useful_ns}


def shape_class(batch: int, m: int, n: int, k: int) -> tuple[int, ...]:
    """Matmuls of like speed: sides rounded to powers of two, and whether there is a batch."""
    return (*(round(math.log2(max(1, side))) for side in (m, n, k)), int(batch > 1))


def best_speeds(
    matmuls: Iterable[tuple[str | None, Row]],
) -> dict[str, dict[Matmul, float]]:
    """TFLOP/s of the best joined matmul of each device, by format and class of shape; `matmuls` are
    (device, row)."""
    bests: dict[str, dict[Matmul, float]] = {}
    for device, row in matmuls:
        if (
            device
            and (speed := row.get("tflop_s"))
            and row["status"] == "ok"
            and row["m"]
            and row["n"]
            and row["k"]
        ):
            shape = shape_class(row["batch"] or 1, row["m"], row["n"], row["k"])
            matmul = row.get("effective_precision") or row["precision"], shape
            best = bests.setdefault(device, {})
            best[matmul] = max(speed, best.get(matmul, 0.0))
    return bests


def best_time(
    products: Sequence[Row], measured: Mapping[Matmul, float]
) -> tuple[float | None, str | None]:
    """Share of matmuls' time that they would take at the best speed known for each shape, and who
    says so: `trace`, `matmul_runs` or `both`; None without matmuls. `best_ns` of `products` is the
    time of as many calls as fast as the fastest; `measured` are TFLOP/s of the best matmul by
    format and `shape_class`."""
    total_ns = sum(product["time_ns"] for product in products)
    best = 0.0
    sources = set[str]()
    for product in products:
        rate = None
        if product["matmul"]:
            rate = measured.get((product["format"], shape_class(*product["matmul"])))
        measured_ns = product["flops"] / rate / 1e3 if rate else math.inf
        best += min(measured_ns, product["best_ns"])
        sources |= {"matmul_runs" if measured_ns < product["best_ns"] else "trace"}
    if not total_ns:
        return None, None
    return best / total_ns, sources.pop() if len(sources) == 1 else "both"


def of_operators(
    operators: Sequence[Row],
    peaks: Mapping[str, float],
    memory_gb_s: float | None,
    steps: int,
) -> list[Record]:
    """Roofline of each operator of a step, the most to gain first: Williams et al. 2009,
    doi:10.1145/1498765.1498785. The best time is the longest of three: FLOPs ÷ peak in TFLOP/s
    (bound by `compute`), bytes ÷ bandwidth in GB/s (`memory`), as many kernels as short as the
    shortest (`launch`). Bytes are a lower bound, so the best time is too. `headroom_ms` is the
    kernels' own time − best; `doubtful` rows ran above the roof. Nothing is clipped."""
    roofs: list[Record] = []
    for operator in operators:
        row: Record = {
            name: operator.get(name) for name in ("kind", "operator", "shapes", "calls", "reason")
        }
        row |= {
            "time_ms": operator["time_ns"] / 1e6 / steps,
            "bound": None,
            "best_ms": None,
            "headroom_ms": None,
        }
        flops = operator.get("flops")
        if flops is not None and memory_gb_s and not flops.keys() - peaks.keys():
            compute_ns = sum(count / peaks[name] for name, count in flops.items()) / 1e3
            times = {"compute": compute_ns, "memory": operator["bytes"] / memory_gb_s}
            times["launch"] = float(operator["launch_ns"])
            bound = max(times, key=lambda name: times[name])
            left = operator["kernel_ns"] - times[bound]
            row |= {
                "bound": bound,
                "best_ms": times[bound] / 1e6 / steps,
                "headroom_ms": left / 1e6 / steps,
            }
            row["doubtful"] = left < 0
        elif flops is not None:
            row["reason"] = {"no_roof": {}}
        roofs.append(row)
    bounded = sorted((row for row in roofs if row["bound"]), key=lambda row: -row["headroom_ms"])
    return bounded + sorted(
        (row for row in roofs if not row["bound"]), key=lambda row: -row["time_ms"]
    )


def attainable_s(roofs: Sequence[Row], executed_ratio: float | None = None) -> float | None:
    """Seconds of a step if each operator of `of_operators` took its best time, else its own, and
    nothing waited. Padding of matmuls stays where known, as operations executed ÷ counted. None
    where no matmul has a best time."""
    factors = {("products", "compute"): executed_ratio or 1.0}
    times_ms = []
    for roof in roofs:
        if roof["kind"] not in ("idle", "input_wait"):
            times_ms.append(
                roof["best_ms"] * factors.get((roof["kind"], roof["bound"]), 1.0)
                if roof["bound"]
                else roof["time_ms"]
            )
    is_known = any(roof["bound"] and roof["kind"] == "products" for roof in roofs)
    if is_known:
        return sum(times_ms) / 1e3
    return None


def shared(spent_ns: Mapping[str, int], step_ns: int) -> dict[str, int]:
    """Times of a window scaled to one step in whole nanoseconds; idle takes what rounding loses."""
    if not (total_ns := sum(spent_ns.values())):
        return {"idle": step_ns}
    scaled = {name: time * step_ns // total_ns for name, time in spent_ns.items()}
    scaled["idle"] = scaled.get("idle", 0) + step_ns - sum(scaled.values())
    return scaled


def all_counted(spent_ns: Mapping[str, int]) -> dict[str, int]:
    """Times with those of matmuls of unknown FLOPs among `products`: a count of the model has them."""
    products = spent_ns.get("products", 0) + spent_ns.get("uncounted", 0)
    return {**spent_ns, "products": products, "uncounted": 0}


def apart(spent_ns: Mapping[str, int], faults_ns: float) -> dict[str, int]:
    """Times with `page_faults` taken out of operators, in proportion: a trace does not say out of
    which."""
    wanted = min(round(faults_ns), sum(spent_ns.get(name, 0) for name in _OF_OPERATORS))
    return _less(spent_ns, _OF_OPERATORS, wanted) | {"page_faults": wanted}


def _less(spent_ns: Mapping[str, int], names: Sequence[str], wanted: int) -> dict[str, int]:
    """Times with `wanted` ns taken out of `names`, in proportion and exactly; they hold at least
    that much."""
    parts = dict(spent_ns)
    before = 0
    taken = 0
    total_ns = sum(spent_ns.get(name, 0) for name in names)
    for name in names:
        before += spent_ns.get(name, 0)
        until = 0
        if total_ns:
            until = before * wanted // total_ns
        parts[name], taken = spent_ns.get(name, 0) - (until - taken), until
    return parts
