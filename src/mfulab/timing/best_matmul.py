"""Rates of the simplest work at full size: matmuls over growing shapes, and a memory triad, bounded
in time."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl
import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.core.said import Said
from mfulab.device import ByKind, cpu, is_gpu, vendors
from mfulab.device.gpu import clock_reader
from mfulab.timing.clocks import Clock, clock_for
from mfulab.timing.statistics import Stats

# M×N×K, growing: a shape is left out once the rate seen so far says that it does not fit into the
# time.
CPU_SHAPES = [(n, n, n) for n in (128, 256, 512, 1024, 2048, 3072, 4096)] + [
    (2048, 2048, 512),
    (1024, 4096, 1024),
]
CUDA_SHAPES = [(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)] + [
    (8192, 8192, 2048),
    (16384, 8192, 4096),
]
MIDDLE = ByKind(
    cpu=(512, 512, 512), gpu=(4096, 4096, 4096)
)  # where the ways to multiply are compared
BURST_S = 0.01


@dataclass(frozen=True)
class Search:
    """Extent of a search for the fastest matmul: shapes (M×N×K), ways to multiply, seconds and
    samples."""

    shapes: Sequence[tuple[int, int, int]]
    limit_s: float  # of each way
    sample_s: float
    samples: int = 4  # of each shape
    # of back-to-back work before a shape: a GPU's clock falls to one that it can hold
    settle_s: float = 0.0
    ways: int = 2  # the fastest at a middle shape, which are sampled at every shape
    triads: int = 20  # samples of the memory's bandwidth


CAREFUL = ByKind(
    cpu=Search(CPU_SHAPES, 2.0, 0.05), gpu=Search(CUDA_SHAPES, 15.0, 0.2, settle_s=0.5)
)
# Of a GPU in a sweep of minutes: two shapes, 0.3 s each once settled. A faster run of the sweep
# raises the ceiling.
QUICK = Search(
    [(4096, 4096, 4096), (8192, 8192, 8192)], 1.2, 0.1, samples=3, settle_s=0.2, ways=1, triads=5
)


Matmul = Callable[[], object]


class Best(NamedTuple):
    """The fastest matmul: in which of WAYS, of which shape (MxNxK), at how many TFLOP/s, and before
    a clock settled."""

    library: str
    shape: str
    tflop_s: float
    burst_tflop_s: float | None


def sweep_matmuls(
    precision: str,
    device: torch.device,
    search: Search | None = None,
    only: tuple[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Samples of C = A·B over growing shapes in TFLOP/s, by the WAYS that are fastest at a middle
    shape, or `only` one way and shape. A GPU's hold the clock; a `burst` is from before it
    settled."""
    search = search or CAREFUL[device.type]
    with threadpoolctl.threadpool_limits(torch.get_num_threads()):
        if only is not None:
            m, n, k = map(int, only[1].split("x"))
            return _sweep(only[0], precision, device, replace(search, shapes=[(m, n, k)]))
        ways = _fastest_ways(precision, device)[: search.ways]
        return [sample for way in ways for sample in _sweep(way, precision, device, search)]


def _fastest_ways(precision: str, device: torch.device) -> list[str]:
    matmuls: dict[str, Matmul] = {}
    for way in WAYS:
        try:
            matmuls[way] = WAYS[way](precision, *MIDDLE[device.type], device)
            matmuls[way]()
        except (UnsupportedError, RuntimeError, NotImplementedError):
            if way == "torch":
                raise
            matmuls.pop(way, None)
    clock = clock_for(device)
    seconds = dict.fromkeys(matmuls, math.inf)
    for _ in range(3):  # apart in time: a neighbour slows one round down, not every one
        for way, matmul in matmuls.items():
            seconds[way] = min(
                seconds[way], *(sample.time_s for sample in _repeat(matmul, clock, 0.01, 2))
            )
    return sorted(seconds, key=lambda way: seconds[way])


def _sweep(
    library: str, precision: str, device: torch.device, search: Search
) -> list[dict[str, Any]]:
    clock = clock_for(device)
    read_mhz = clock_reader(device)
    began = time.perf_counter()
    samples: list[dict[str, Any]] = []
    slowest = 0.0  # seconds a FLOP, as the latest shape ran
    for m, n, k in search.shapes:
        flops = 2 * m * n * k
        left = search.limit_s - (time.perf_counter() - began)
        # Its samples; the few calls that come before them take the little that a limit of about so
        # long allows.
        if samples and left < search.samples * max(flops * slowest, search.sample_s):
            continue
        burst: list[Sample] = []
        try:
            matmul = WAYS[library](precision, m, n, k, device)
            if is_gpu(
                device
            ):  # a sample at the clock that it begins with, then work until it is the one it holds
                burst = _repeat(matmul, clock, BURST_S, 1, read_mhz)
                _repeat(matmul, clock, search.settle_s, 1)
            held = _repeat(matmul, clock, search.sample_s, search.samples, read_mhz)
        except torch.OutOfMemoryError:
            continue
        slowest = Stats([sample.time_s for sample in held]).median / flops
        samples += [
            {
                "library": library,
                "shape": f"{m}x{n}x{k}",
                "time_s": time_s,
                "tflop_s": flops / time_s / 1e12,
            }
            | ({"clock_mhz": clock_mhz, "burst": place < len(burst)} if is_gpu(device) else {})
            for place, (time_s, clock_mhz) in enumerate((*burst, *held))
        ]
    return samples


def matmul_of(
    precision: str, m: int, n: int, k: int, device: torch.device, layout: str = "nn"
) -> Matmul:
    """A function that multiplies (m, k) by (k, n): `layout` nn row-major, nt the right, tn the left
    transposed."""
    # Random normal data: a matmul of zeros draws less power and runs faster.
    a = torch.randn(m, k, device=device)
    b = torch.randn(k, n, device=device)
    a = a.t().contiguous().t() if layout == "tn" else a
    b = b.t().contiguous().t() if layout == "nt" or precision == "fp8" else b
    try:
        if precision == "int8":
            left = (a * 32).to(torch.int8)
            right = (b * 32).to(torch.int8)
            torch._int_mm(left, right)
            return lambda: torch._int_mm(left, right)
        if precision == "fp8":
            left = a.to(torch.float8_e4m3fn)
            right = b.to(torch.float8_e4m3fn)
            scale = torch.ones((), device=device)
            torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)
            return lambda: torch._scaled_mm(left, right, scale, scale, out_dtype=torch.bfloat16)
        dtype = _dtype(precision)
        left = a.to(dtype)
        right = b.to(dtype)
        out = torch.mm(left, right)
        return lambda: torch.mm(left, right, out=out)
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UnsupportedError(
            Said(
                "matmuls_refused",
                {
                    "precision": precision,
                    "device": device.type,
                    "error": str(str(error).splitlines()[0]),
                },
            )
        ) from error


def cast_matmul(precision: str, m: int, n: int, k: int, device: torch.device) -> Matmul:
    """A matmul of 16-bit operands, cast up to fp32 first and the result back."""
    if precision not in ("bf16", "fp16"):
        raise UnsupportedError(Said("not_cast_up", {"precision": precision}))
    left, right = _drawn(precision, device, (m, k), (k, n))
    return lambda: torch.mm(left.float(), right.float()).to(left.dtype)


def convolution(precision: str, m: int, n: int, k: int, device: torch.device) -> Matmul:
    """A convolution of as many FLOPs: m places, n filters, k = channels × 2 × 2."""
    width = 1 << (m.bit_length() // 2)
    if k % 4 or m % width:
        raise UnsupportedError(Said("no_convolution_of", {"m": m, "n": n, "k": k}))
    image, filters = _drawn(
        precision, device, (1, k // 4, m // width + 1, width + 1), (n, k // 4, 2, 2)
    )
    return torch.inference_mode()(lambda: torch.nn.functional.conv2d(image, filters))


def attention(precision: str, m: int, n: int, k: int, device: torch.device) -> Matmul:
    """Fused attention of as many FLOPs: m queries, n keys, k = 2 × heads × 64."""
    if k % 128:
        raise UnsupportedError(Said("no_attention_of", {"m": m, "n": n, "k": k}))
    queries, keys = _drawn(precision, device, *((1, k // 128, length, 64) for length in (m, n)))
    return torch.inference_mode()(
        lambda: torch.nn.functional.scaled_dot_product_attention(queries, keys, keys)
    )


def numpy_matmul(precision: str, m: int, n: int, k: int, device: torch.device) -> Matmul:
    """A matmul by NumPy, which computes fp32 and fp64 on the CPU."""
    if device.type != "cpu" or precision not in ("fp32", "fp64"):
        raise UnsupportedError(Said("numpy_lacks", {"precision": precision, "device": device.type}))
    left, right = (operand.numpy() for operand in _drawn(precision, device, (m, k), (k, n)))
    out = np.matmul(left, right)
    return lambda: np.matmul(left, right, out=out)


def onednn_matmul(precision: str, m: int, n: int, k: int, device: torch.device) -> Matmul:
    """A matmul by oneDNN, as a linear layer without bias, of tensors in its own layout."""
    if (
        device.type != "cpu"
        or precision not in ("fp32", "bf16")
        or not torch.backends.mkldnn.is_available()
    ):
        raise UnsupportedError(
            Said("onednn_lacks", {"precision": precision, "device": device.type})
        )
    left, right = (operand.to_mkldnn() for operand in _drawn(precision, device, (m, k), (n, k)))
    return torch.inference_mode()(lambda: torch.nn.functional.linear(left, right))


def _dtype(precision: str) -> torch.dtype:
    if precision in ("int8", "fp8"):
        raise UnsupportedError(Said("matmuls_alone", {"precision": precision}))
    return getattr(torch, FORMATS[precision].operand)  # type: ignore[no-any-return]


def _drawn(precision: str, device: torch.device, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(*sides, device=device).to(_dtype(precision)) for sides in shapes]


# Ways to multiply, by the name that `measured_with` gives them.
WAYS: dict[str, Callable[..., Matmul]] = {
    "torch": matmul_of,
    "torch_nt": partial(matmul_of, layout="nt"),
    "torch_tn": partial(matmul_of, layout="tn"),
    "cast": cast_matmul,
    "convolution": convolution,
    "attention": attention,
    "numpy": numpy_matmul,
    "onednn": onednn_matmul,
}


def fastest_matmul(samples: list[dict[str, Any]], device: torch.device) -> Best:
    """The way and shape with the highest rate: on a CPU the best sample's, on a GPU the median's,
    bursts apart."""
    rates: dict[tuple[str, str], list[float]] = {}
    bursts: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        speeds = bursts if sample.get("burst") else rates
        speeds.setdefault((sample["library"], sample["shape"]), []).append(sample["tflop_s"])
    bests = (
        Best(*way, _typical(seen, device), max(bursts.get(way, ()), default=None))
        for way, seen in rates.items()
    )
    return max(bests, key=lambda best: best.tflop_s)


def best_bandwidth(samples: list[dict[str, Any]], device: torch.device) -> float:
    """The triad's bandwidth in 10⁹ byte/s, chosen as a shape's rate is."""
    return _typical([sample["gb_s"] for sample in samples], device)


def _typical(rates: list[float], device: torch.device) -> float:
    return max(rates) if device.type == "cpu" else Stats(rates).median


def sweep_triad(
    device: torch.device, search: Search | None = None, limit_s: float = math.inf
) -> list[dict[str, Any]]:
    """Samples of the bandwidth of a[i] = b[i] + s·c[i] in 10⁹ byte/s, three streams counted; none
    after `limit_s`."""
    search = search or CAREFUL[device.type]
    length = triad_length(device)
    # Drawing a gigabyte takes a CPU seconds, and what it adds takes no other time for it.
    a, b, c = (
        (torch.randn if is_gpu(device) else torch.ones)(length, device=device) for _ in range(3)
    )
    moved = 3 * length * a.element_size()
    clock = clock_for(device)
    read_mhz = clock_reader(device)
    on_gpu = is_gpu(device)
    triad = partial(torch.add, b, c, alpha=3.0, out=a)
    return [
        {"elements": length, "time_s": sample.time_s, "gb_s": moved / sample.time_s / 1e9}
        | ({"clock_mhz": sample.clock_mhz} if on_gpu else {})
        for sample in _repeat(triad, clock, search.sample_s, search.triads, read_mhz, limit_s)
    ]


def triad_length(device: torch.device) -> int:
    """Elements of each of the triad's three fp32 arrays: each is 4 times the last-level cache, at
    least 64 MiB."""
    return max(4 * last_cache_bytes(device), 64 << 20) // 4


def last_cache_bytes(device: torch.device) -> int:
    """Bytes of a device's last-level cache; 32 MiB for a CPU that does not tell."""
    of_cpu = cpu.cpu().last_level_cache_bytes or 32 << 20
    if is_gpu(device):
        return vendors.of_device(device).last_cache_bytes(device)
    return of_cpu


class Sample(NamedTuple):
    """Seconds a call, and the device's clock in MHz while the calls ran."""

    time_s: float
    clock_mhz: float | None


def _repeat(
    action: Callable[[], object],
    clock: Clock,
    sample_s: float,
    samples: int,
    frequency_mhz: Callable[[], float | None] = lambda: None,
    limit_s: float = math.inf,
) -> list[Sample]:
    until = time.perf_counter() + limit_s
    for _ in range(2):
        clock.synchronise()
        began = time.perf_counter()
        action()
        clock.synchronise()
        once = time.perf_counter() - began
    taken: list[Sample] = []
    while len(taken) < samples and (not taken or time.perf_counter() < until):
        # Where a neighbour came meanwhile, as many calls as before would take many times as long.
        calls = max(1, round(sample_s / max(taken[-1].time_s if taken else once, 1e-7)))
        clock.mark()
        for _ in range(calls):
            action()
        clock.mark()
        during = frequency_mhz()  # a GPU is still at work
        taken.append(Sample(clock.intervals()[0] / calls, during))
    return taken
