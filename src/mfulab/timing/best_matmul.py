"""Measures the best rates of a device: matmuls over growing shapes, and a memory triad, within a
time limit."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, NotRequired, TypedDict

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

# M×N×K in ascending order. A shape is skipped if, at the rate so far, it would exceed the time
# limit.
CPU_SHAPES = [(n, n, n) for n in (128, 256, 512, 1024, 2048, 3072, 4096)] + [
    (2048, 2048, 512),
    (1024, 4096, 1024),
]
CUDA_SHAPES = [(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)] + [
    (8192, 8192, 2048),
    (16384, 8192, 4096),
]
# shape at which the ways to multiply are compared
MIDDLE = ByKind(cpu=(512, 512, 512), gpu=(4096, 4096, 4096))
BURST_S = 0.01


@dataclass(frozen=True)
class Search:
    """Parameters of a search for the fastest matmul: shapes (M×N×K), number of ways to multiply,
    seconds and samples."""

    shapes: Sequence[tuple[int, int, int]]
    limit_s: float  # per way
    sample_s: float
    samples: int = 4  # per shape
    # back-to-back work before each shape, in which a GPU's clock falls to a sustainable one
    settle_s: float = 0.0
    ways: int = 2  # number of ways, the fastest at a middle shape, to sample at every shape
    triads: int = 20  # samples of the memory bandwidth


CAREFUL = ByKind(
    cpu=Search(CPU_SHAPES, 2.0, 0.05), gpu=Search(CUDA_SHAPES, 15.0, 0.2, settle_s=0.5)
)
# For a GPU in a sweep of minutes: two shapes, 0.3 s each once settled. A faster run of the sweep
# raises the ceiling later.
QUICK = Search(
    [(4096, 4096, 4096), (8192, 8192, 8192)], 1.2, 0.1, samples=3, settle_s=0.2, ways=1, triads=5
)


Matmul = Callable[[], object]


class MatmulSample(TypedDict):
    """One sample of a matmul, as a row: its way (a key of WAYS), shape (MxNxK) and speed."""

    library: str
    shape: str
    time_s: float
    tflop_s: float
    clock_mhz: NotRequired[float | None]  # of a GPU
    burst: NotRequired[bool]  # True if a GPU's clock had not settled


class TriadSample(TypedDict):
    """One sample of the memory's bandwidth, as a row."""

    elements: int
    time_s: float
    gb_s: float
    clock_mhz: NotRequired[float | None]  # of a GPU


class Best(NamedTuple):
    """Fastest matmul: its way (a key of WAYS), shape (MxNxK) and TFLOP/s, and TFLOP/s before the
    clock settled."""

    library: str
    shape: str
    tflop_s: float
    burst_tflop_s: float | None


def sweep_matmuls(
    precision: str,
    device: torch.device,
    search: Search | None = None,
    only: tuple[str, str] | None = None,
) -> list[MatmulSample]:
    """Measures C = A·B over growing shapes in TFLOP/s, with the fastest of WAYS at a middle shape.
    `only` selects one way and one shape. On a GPU, samples are taken once the clock has settled;
    those marked `burst` are from before."""
    search = search or CAREFUL[device.type]
    with threadpoolctl.threadpool_limits(torch.get_num_threads()):
        if only is not None:
            m, n, k = map(int, only[1].split("x"))
            return _sweep(only[0], precision, device, replace(search, shapes=[(m, n, k)]))
        samples = []
        for way in _fastest_ways(precision, device)[: search.ways]:
            samples += _sweep(way, precision, device, search)
        return samples


def _fastest_ways(precision: str, device: torch.device) -> list[str]:
    matmuls: dict[str, Matmul] = {}
    for way, make in WAYS.items():
        try:
            matmul = make(precision, *MIDDLE[device.type], device)
            matmul()
        except (UnsupportedError, RuntimeError, NotImplementedError):
            if way == "torch":
                raise
        else:
            matmuls[way] = matmul
    clock = clock_for(device)
    best_s = dict.fromkeys(matmuls, math.inf)
    for _ in range(3):  # spread over time, so that a neighbour slows down only some rounds
        for way, matmul in matmuls.items():
            for sample in _repeat(matmul, clock, 0.01, 2):
                best_s[way] = min(best_s[way], sample.time_s)
    return sorted(best_s, key=lambda way: best_s[way])


def _sweep(
    library: str, precision: str, device: torch.device, search: Search
) -> list[MatmulSample]:
    clock = clock_for(device)
    read_mhz = clock_reader(device)
    began = time.perf_counter()
    samples: list[MatmulSample] = []
    flop_s = 0.0  # seconds per FLOP of the latest shape
    for m, n, k in search.shapes:
        flops = 2 * m * n * k
        left_s = search.limit_s - (time.perf_counter() - began)
        # Counts only the samples: the few calls before them may exceed the limit slightly.
        if samples and left_s < search.samples * max(flops * flop_s, search.sample_s):
            continue
        burst: list[Sample] = []
        try:
            matmul = WAYS[library](precision, m, n, k, device)
            if is_gpu(device):  # one sample at the initial clock, then work until the clock settles
                burst = _repeat(matmul, clock, BURST_S, 1, read_mhz)
                _repeat(matmul, clock, search.settle_s, 1)
            held = _repeat(matmul, clock, search.sample_s, search.samples, read_mhz)
        except torch.OutOfMemoryError:
            continue
        flop_s = Stats([sample.time_s for sample in held]).median / flops
        for index, (time_s, clock_mhz) in enumerate((*burst, *held)):
            sample: MatmulSample = {
                "library": library,
                "shape": f"{m}x{n}x{k}",
                "time_s": time_s,
                "tflop_s": flops / time_s / 1e12,
            }
            if is_gpu(device):
                sample["clock_mhz"] = clock_mhz
                sample["burst"] = index < len(burst)
            samples.append(sample)
    return samples


def matmul_of(
    precision: str, m: int, n: int, k: int, device: torch.device, layout: str = "nn"
) -> Matmul:
    """Returns a function that multiplies (m, k) by (k, n). `layout` is nn for row-major operands,
    nt for a transposed right one, tn for a transposed left one."""
    # Random normal data: a matmul of zeros draws less power and runs faster.
    a = torch.randn(m, k, device=device)
    b = torch.randn(k, n, device=device)
    if layout == "tn":
        a = a.t().contiguous().t()
    if layout == "nt" or precision == "fp8":
        b = b.t().contiguous().t()
    try:
        return _product(precision, a, b)
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UnsupportedError(
            Said(
                "matmuls_refused",
                precision=precision,
                device=device.type,
                error=str(error).splitlines()[0],
            )
        ) from error


def _product(precision: str, a: torch.Tensor, b: torch.Tensor) -> Matmul:
    """Returns a function that multiplies two matrices in a precision, after one trial."""
    product: Matmul
    if precision == "int8":
        left = (a * 32).to(torch.int8)
        right = (b * 32).to(torch.int8)
        product = partial(torch._int_mm, left, right)
    elif precision == "fp8":
        left = a.to(torch.float8_e4m3fn)
        right = b.to(torch.float8_e4m3fn)
        one = torch.ones((), device=a.device)
        product = partial(torch._scaled_mm, left, right, one, one, out_dtype=torch.bfloat16)
    else:
        left = a.to(_dtype(precision))
        right = b.to(_dtype(precision))
        out = torch.mm(left, right)
        return partial(torch.mm, left, right, out=out)
    product()
    return product


def cast_matmul(precision: str, m: int, n: int, k: int, device: torch.device) -> Matmul:
    """Returns a function that casts 16-bit operands to fp32, multiplies them and casts the result
    back."""
    if precision not in ("bf16", "fp16"):
        raise UnsupportedError(Said("not_cast_up", precision=precision))
    left, right = _drawn(precision, device, (m, k), (k, n))
    return lambda: torch.mm(left.float(), right.float()).to(left.dtype)


def convolution(precision: str, m: int, n: int, k: int, device: torch.device) -> Matmul:
    """Returns a convolution with the FLOPs of an m×n×k matmul: m output positions, n filters, k =
    channels × 2 × 2."""
    width = 1 << (m.bit_length() // 2)
    if k % 4 or m % width:
        raise UnsupportedError(Said("no_convolution_of", m=m, n=n, k=k))
    channels = k // 4
    image_shape = (1, channels, m // width + 1, width + 1)
    image, filters = _drawn(precision, device, image_shape, (n, channels, 2, 2))
    return torch.inference_mode()(lambda: torch.nn.functional.conv2d(image, filters))


def attention(precision: str, m: int, n: int, k: int, device: torch.device) -> Matmul:
    """Returns a fused attention with the FLOPs of an m×n×k matmul: m queries, n keys, k = 2 × heads
    × 64."""
    if k % 128:
        raise UnsupportedError(Said("no_attention_of", m=m, n=n, k=k))
    heads = k // 128
    queries, keys = _drawn(precision, device, (1, heads, m, 64), (1, heads, n, 64))
    return torch.inference_mode()(
        lambda: torch.nn.functional.scaled_dot_product_attention(queries, keys, keys)
    )


def numpy_matmul(precision: str, m: int, n: int, k: int, device: torch.device) -> Matmul:
    """Returns a matmul by NumPy, for fp32 and fp64 on the CPU."""
    if device.type != "cpu" or precision not in ("fp32", "fp64"):
        raise UnsupportedError(Said("numpy_lacks", precision=precision, device=device.type))
    left, right = (operand.numpy() for operand in _drawn(precision, device, (m, k), (k, n)))
    out = np.matmul(left, right)
    return lambda: np.matmul(left, right, out=out)


def onednn_matmul(precision: str, m: int, n: int, k: int, device: torch.device) -> Matmul:
    """Returns a matmul by oneDNN, as a linear layer without bias on tensors in oneDNN's own
    layout."""
    has_onednn = device.type == "cpu" and torch.backends.mkldnn.is_available()
    if not has_onednn or precision not in ("fp32", "bf16"):
        raise UnsupportedError(Said("onednn_lacks", precision=precision, device=device.type))
    left, right = (operand.to_mkldnn() for operand in _drawn(precision, device, (m, k), (n, k)))
    return torch.inference_mode()(lambda: torch.nn.functional.linear(left, right))


def _dtype(precision: str) -> torch.dtype:
    if precision in ("int8", "fp8"):
        raise UnsupportedError(Said("matmuls_alone", precision=precision))
    return getattr(torch, FORMATS[precision].operand)  # type: ignore[no-any-return]


def _drawn(precision: str, device: torch.device, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(*sides, device=device).to(_dtype(precision)) for sides in shapes]


# Ways to multiply, by their name in the column `measured_with`.
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


def fastest_matmul(samples: Sequence[MatmulSample], device: torch.device) -> Best:
    """Way and shape with the highest rate, bursts not counted. A CPU's rate is that of its best
    sample, a GPU's the median."""
    rates: dict[tuple[str, str], list[float]] = {}
    bursts: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        speeds = bursts if sample.get("burst") else rates
        way = sample["library"], sample["shape"]
        speeds.setdefault(way, []).append(sample["tflop_s"])
    bests = []
    for way, seen in rates.items():
        burst = max(bursts.get(way, ()), default=None)
        bests.append(Best(*way, _typical(seen, device), burst))
    return max(bests, key=lambda best: best.tflop_s)


def best_bandwidth(samples: Sequence[TriadSample], device: torch.device) -> float:
    """Bandwidth of the triad in 10⁹ byte/s: a CPU's best sample, or a GPU's median."""
    return _typical([sample["gb_s"] for sample in samples], device)


def _typical(rates: list[float], device: torch.device) -> float:
    if device.type == "cpu":
        return max(rates)
    return Stats(rates).median


def sweep_triad(
    device: torch.device, search: Search | None = None, limit_s: float = math.inf
) -> list[TriadSample]:
    """Measures the bandwidth of a[i] = b[i] + s·c[i] in 10⁹ byte/s, counting three streams. Starts
    no sample after `limit_s`, except the first."""
    search = search or CAREFUL[device.type]
    length = triad_length(device)
    on_gpu = is_gpu(device)
    # On a CPU, a gigabyte of random numbers takes seconds, and the values do not affect its speed.
    filled = torch.randn if on_gpu else torch.ones
    a, b, c = (filled(length, device=device) for _ in range(3))
    moved = 3 * length * a.element_size()
    clock = clock_for(device)
    read_mhz = clock_reader(device)
    triad = partial(torch.add, b, c, alpha=3.0, out=a)
    samples = []
    for taken in _repeat(triad, clock, search.sample_s, search.triads, read_mhz, limit_s):
        sample: TriadSample = {
            "elements": length,
            "time_s": taken.time_s,
            "gb_s": moved / taken.time_s / 1e9,
        }
        if on_gpu:
            sample["clock_mhz"] = taken.clock_mhz
        samples.append(sample)
    return samples


def triad_length(device: torch.device) -> int:
    """Number of fp32 elements in each of the triad's three arrays. An array has 4 times the
    last-level cache's size, but at least 64 MiB."""
    return max(4 * last_cache_bytes(device), 64 << 20) // 4


def last_cache_bytes(device: torch.device) -> int:
    """Size of a device's last-level cache in bytes; 32 MiB for a CPU that does not report it."""
    if is_gpu(device):
        return vendors.of_device(device).last_cache_bytes(device)
    return cpu.cpu().last_level_cache_bytes or 32 << 20


class Sample(NamedTuple):
    """Seconds per call, and the device's clock in MHz during the calls."""

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
        call_s = time.perf_counter() - began
    taken: list[Sample] = []
    while len(taken) < samples and (not taken or time.perf_counter() < until):
        # Adapted to the latest sample, as the same number of calls takes longer beside a neighbour.
        calls = max(1, round(sample_s / max(call_s, 1e-7)))
        clock.mark()
        for _ in range(calls):
            action()
        clock.mark()
        during = frequency_mhz()  # read while a GPU is still busy
        call_s = clock.intervals()[0] / calls
        taken.append(Sample(call_s, during))
    return taken
