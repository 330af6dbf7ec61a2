"""Features available on each GPU, as determined by the code on emulated drivers: the table of
docs/gpu.md.

PYTHONPATH=src:tests python -m support.cards rewrites the table
"""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mfulab.core.formats import FORMATS
from mfulab.core.said import Said, as_told
from mfulab.device import emulation, identity, system
from mfulab.device.peaks import peak
from mfulab.device.vendors import amd, apple, gpm, nvidia, nvml, torch_build
from mfulab.kernels.base import MatmulKernel, Shape
from mfulab.kernels.devices import HOPPER
from mfulab.mfu.utilization import default_basis

from . import amd_stand_in, apple_stand_in, nvml_stand_in
from .shape_classes import kernel_classes, refused
from .workflow_copy import ROOT

DOCUMENT = ROOT / "docs/gpu.md"
BEGIN, END = "<!-- cards -->\n", "<!-- end of cards -->"
HEAD = (
    "| card, as its driver calls it | 16 bits | peak, TFLOP/s | SMs' and tensor cores' activity "
    "| CUDA C | Numba | Triton | it gets less, as |\n|---|---|---:|---|---:|---:|---|---|\n"
)
FOOT = """
Read from stand-ins for each driver and from the datasheets here, by `python -m support.cards` (in `tests/`),
on none of these cards but the H200 †. `CUDA C`, `Numba` and `Triton` count rungs, or name formats, that do
not refuse the card and that CUDA 13 compiles for it.
"""
WHEEL = torch_build.Build("2.13.0+cu130", "13.0", "")
CODE = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")  # architectures of these wheels
SAMPLED = "DCGM's page or cupti-python"
SAMPLED_SINCE = (7, 5)  # supported by cupti-python
CONSUMER = (12, 0)  # not known whether GPM is supported
# CUDA 13.0's release notes: its compilers have no Maxwell, Pascal and Volta any more.
COMPILED_SINCE = (7, 5)
NARROW = ("bf16", "tf32", "fp8")
SQUARE = Shape(1, 4096, 4096, 4096)


@dataclass(frozen=True)
class Card:
    """GPU by its driver's name. `less` is a limitation that the code does not report itself."""

    name: str
    capability: tuple[int, int] = (0, 0)
    units: int | None = None
    less: str = ""
    architecture: str = ""  # LLVM's name, of AMD's


NVIDIAS = (
    Card("Tesla V100-SXM2-16GB", (7, 0)),
    Card("Tesla T4", (7, 5)),
    Card("NVIDIA A100-SXM4-80GB", (8, 0)),
    Card("NVIDIA GeForce RTX 3090", (8, 6)),
    Card(
        "Orin",
        (8, 7),
        16,
        "NVML tells little of a Jetson: most of its columns are empty and say so",
    ),
    Card("NVIDIA L4", (8, 9)),
    Card("NVIDIA L40S", (8, 9)),
    Card("NVIDIA GeForce RTX 4090", (8, 9)),
    Card("NVIDIA H100 PCIe", (9, 0)),
    Card("NVIDIA H200", (9, 0)),
    Card("NVIDIA GH200 480GB", (9, 0)),
    Card("NVIDIA B200", (10, 0)),
    Card("NVIDIA GeForce RTX 5090", (12, 0)),
    Card("NVIDIA GB10", (12, 1)),
)
AMDS = (
    Card(
        "AMD Instinct MI250",
        units=104,
        architecture="gfx90a",
        less="each of its two dies is a device",
    ),
    Card("AMD Instinct MI300X", units=304, architecture="gfx942"),
    Card("AMD Instinct MI355X", units=256, architecture="gfx950"),
)
# Those whose maker is recognised by its PCI identifier, to say why the CPU is measured.
UNMEASURED = (("Intel Arc", "0x8086"), ("Huawei Ascend", "0x19e5"))


def table() -> str:
    """Text of the table."""
    others = (_of_unmeasured(*each) for each in UNMEASURED)
    lines = [*map(_of_nvidia, NVIDIAS), *map(_of_amd, AMDS), _of_apple(), *others]
    return HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + FOOT


def _of_nvidia(card: Card) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        gpu = nvml_stand_in.Gpu(
            name=card.name, capability=card.capability, gpm=card.capability >= (9, 0)
        )
        nvml_stand_in.StandIn(gpu).install(patch)
        patch.setattr(torch_build, "installed", lambda: WHEEL)
        patch.setattr(nvidia, "_asked_of_torch", lambda uuid: _no_code(card))
        patch.setattr(nvidia.Nvidia, "why_unusable", lambda self, uuid: _no_code(card))
        patch.setattr("torch.cuda.get_device_capability", lambda *_: card.capability)
        patch.setattr("mfulab.kernels.triton_kernels.generation", lambda: card.capability)
        best = "fp16" if emulation.emulated_by_gpu("bf16", card.capability) else "bf16"
        less = []
        why_not = identity.why_not("cuda")
        if why_not:
            less.append(str(why_not).partition(". To ")[0])
        lacking = [
            precision
            for precision in NARROW
            if emulation.emulated_by_gpu(precision, card.capability)
        ]
        if lacking:
            less.append(f"its tensor cores have no {' or '.join(lacking)}")
        if card.capability < COMPILED_SINCE:
            less.append("CUDA 13 compiles nothing for it, neither CUDA C nor Numba's kernels")
        elif card.capability[0] != HOPPER[0]:
            less.append("it has no wgmma: Hopper's rungs refuse it")
        if card.less:
            less.append(card.less)
        activity = "GPM"
        if card.capability >= CONSUMER:
            activity = f"GPM where its driver has it, else {SAMPLED}"
        if gpm.why_unsupported(next(iter(nvml.handles()))):
            since = card.capability >= SAMPLED_SINCE
            activity = SAMPLED if since else "DCGM's page"
        is_compiled = card.capability >= COMPILED_SINCE
        families = [_family(name, is_compiled) for name in ("cuda_", "numba_cuda")]
        formats = _formats("triton_plain")
        return [
            card.name,
            best,
            *_peak(card, best),
            activity,
            *families,
            formats,
            _limitations(less, card, best),
        ]


def _no_code(card: Card) -> Said | None:
    if nvidia.has_code(CODE, card.capability):
        return None
    return as_told("the newest wheels of torch have no code for it, those for CUDA 12.6 have")


def _of_amd(card: Card) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        amd_stand_in.StandIn(amd_stand_in.Gpu(name=card.name, units=card.units or 0)).install(patch)
        patch.setattr("torch.version.hip", "7.0")
        patch.setattr("mfulab.kernels.triton_kernels.generation", lambda: (0, 0))
        patch.setattr("mfulab.kernels.triton_kernels.amd_architecture", lambda: card.architecture)
        counts = [_family("cuda_"), _family("numba_cuda")]
        less = [card.less] if card.less else []
        kind = kernel_classes()["triton_plain"]
        formats = _supported_formats(kind)
        lacking = [precision for precision in kind.precisions if precision not in formats]
        less.append(f"Triton refuses {' and '.join(lacking)} there")
        less.append("AMD SMI has no counters of activity, and CUDA's kernels do not run")
        [seen] = amd.Amd().gpus({})
        return [
            seen.name,
            "bf16",
            *_peak(card, "bf16"),
            "none",
            *counts,
            ", ".join(formats),
            "; ".join(less),
        ]


def _of_apple() -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        apple_stand_in.mac(patch)
        vendor = apple.Apple()
        [seen] = vendor.gpus({})
        formats = [precision for precision in vendor.FORMATS if FORMATS[precision].bytes == 2]
        properties = vendor.properties(seen.uuid, seen.name)
        less = [] if vendor.IS_AUTOMATIC else [f"`device={vendor.KIND}` asks for it"]
        if vendor.clock_reader(seen.uuid)() is None:
            less.append("no clocks")
        if default_basis(vendor.KIND) == "measured":
            less.append("MFU divides by the measured ceiling")
        families = [_family(name, device=vendor.KIND) for name in ("cuda_", "numba_cuda")]
        return [
            seen.name,
            ", ".join(formats),
            *_peak(Card(properties.name, units=properties.sms), formats[0]),
            "none",
            *families,
            ", ".join(_supported_formats(kernel_classes()["triton_plain"], vendor.KIND)),
            "; ".join(less),
        ]


def _of_unmeasured(name: str, maker: str) -> list[str]:
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        pci_device = Path(root) / "sys/bus/pci/devices/0000:03:00.0"
        pci_device.mkdir(parents=True)
        (pci_device / "vendor").write_text(maker)
        (pci_device / "class").write_text("0x030000")
        patch.setattr(system, "ROOT", root)
        message = identity.unused()
        return [
            name,
            "",
            "",
            "none",
            "",
            "",
            "",
            f"the CPU is measured, and told: {message}",
        ]


def _family(begin: str, is_compiled: bool = True, device: str = "cuda") -> str:
    kinds = [
        kind
        for name, kind in kernel_classes().items()
        if name.startswith(begin)
        and "cuda" in kind.devices
        and "seminar" not in name
        and not name.endswith("elementwise")
    ]
    supported = [kind for kind in kinds if is_compiled and _supported_formats(kind, device)]
    return f"{len(supported)} of {len(kinds)}"


def _formats(name: str) -> str:
    return ", ".join(_supported_formats(kernel_classes()[name]))


def _supported_formats(kind: type[MatmulKernel], device: str = "cuda") -> list[str]:
    if device not in kind.devices:
        return []
    return [precision for precision in kind.precisions if not refused(kind(precision), SQUARE)]


def _peak(card: Card, precision: str) -> Iterator[str]:
    found = peak(card.name, precision, card.units)
    yield "" if found.spec is None else f"{found.spec:.0f}"


def _limitations(less: list[str], card: Card, best: str) -> str:
    if peak(card.name, best, card.units).spec is None:
        less = [*less, "no datasheet prints its dense peak: MFU asks for `device.peak_tflop_s`"]
    return "; ".join(less)


def written(document: str) -> str:
    """Document with its table replaced by the current one."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: BEGIN + table() + END, document, flags=re.DOTALL)


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
