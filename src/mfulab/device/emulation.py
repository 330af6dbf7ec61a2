"""Decides which number formats a device computes in hardware and which it emulates in fp32. Uses
CPU flags or the compute capability."""

import os

from mfulab.core.said import Said
from mfulab.device import cpu, identity, vendors

# Per format: the CPU flags whose instructions multiply it, fastest first, and their multiply-adds
# per clock. With AMX they are per core (16×16 results per tile instruction, 16 clocks: Intel SDM,
# TDPBF16PS and TDPBUSD), otherwise per 32-bit lane (VDPBF16PS 2, VPDPBUSD 4). None for Arm, where
# the rate differs between cores.
CPU_UNITS: dict[str, dict[str, int | None]] = {
    "bf16": {"amx_bf16": 512, "avx512_bf16": 2, "bf16": None},
    "fp16": {"amx_fp16": 512, "avx512_fp16": 2, "asimdhp": None},
    "int8": {"amx_int8": 1024, "avx512_vnni": 4, "avx_vnni": 4, "i8mm": None, "asimddp": None},
    "tf32": {},
    "fp8": {},
}
# Lowest compute capability whose tensor cores multiply a format; for int8, the lowest with DP4A.
GPU_SINCE = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9), "int8": (6, 1)}

# Values of ONEDNN_MAX_CPU_ISA in ascending order, each with the CPU flags that it adds:
# https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
_ADDED: dict[str, frozenset[str]] = {
    **dict.fromkeys(("SSE41", "AVX", "AVX2", "AVX512_CORE"), frozenset()),
    "AVX512_CORE_VNNI": frozenset({"avx512_vnni", "avx_vnni"}),
    "AVX512_CORE_BF16": frozenset({"avx512_bf16"}),
    "AVX512_CORE_FP16": frozenset({"avx512_fp16"}),
    "AVX512_CORE_AMX": frozenset({"amx_bf16", "amx_int8"}),
    "AVX512_CORE_AMX_FP16": frozenset({"amx_fp16"}),
}
_ALIKE = {"AVX10_1_512": "AVX512_CORE_FP16", "AVX10_1_512_AMX": "AVX512_CORE_AMX"}


def emulated_by_cpu(precision: str, flags: frozenset[str] | None = None) -> Said | None:
    """Reason why a CPU emulates a format; None if it does not, or its flags are unknown. `flags`
    defaults to those of this machine."""
    if flags is None:
        flags = usable(cpu.cpu().flags)
    units = CPU_UNITS.get(precision)
    if units is None:
        return None
    has_units = not flags or bool(flags & units.keys())
    if units and has_units:
        return None
    is_arm = "asimd" in flags
    needed = [flag for flag, rate in units.items() if (rate is None) == is_arm]
    if not needed:
        return Said("no_units", precision=precision)
    return Said("no_units_of_cpu", precision=precision, flags=" / ".join(needed))


def usable(flags: frozenset[str]) -> frozenset[str]:
    """Drops the CPU flags that ONEDNN_MAX_CPU_ISA (or DNNL_MAX_CPU_ISA) disables for torch's
    matmuls."""
    level = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
    level = level.upper()
    level = _ALIKE.get(level, level)
    kept = frozenset[str]()
    if level.startswith("AVX2_VNNI"):
        kept = frozenset({"avx_vnni"})
        level = "AVX2"
    if level not in _ADDED:
        return flags
    index = list(_ADDED).index(level)
    added_above = list(_ADDED.values())[index + 1 :]
    disabled = frozenset().union(*added_above) - kept
    return flags - disabled


def emulated_by_gpu(
    precision: str, capability: tuple[int, int] | None, has_tf32: bool = True
) -> Said | None:
    """Reason why a GPU of this compute capability emulates a format. None if it does not, or the
    capability is unknown. `has_tf32` is the vendor's `HAS_TF32`."""
    if precision == "tf32" and not has_tf32:
        return Said("tf32_is_nvidias")
    since = GPU_SINCE.get(precision)
    if since is None or capability is None or tuple(capability) >= since:
        return None
    return Said(
        "no_units_of_gpu", has=_version(capability), precision=precision, needs=_version(since)
    )


def _version(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def emulated_here(device: str) -> dict[str, Said]:
    """Formats that this machine's device emulates, each with the reason. `device` is a device
    kind."""
    reasons: dict[str, Said | None] = {}
    if device == "cpu":
        reasons = {name: emulated_by_cpu(name) for name in CPU_UNITS}
    else:
        for gpu in identity.gpus(device)[:1]:
            vendor = vendors.of(gpu.uuid)
            capability = vendor.capability(gpu.uuid)
            for name in GPU_SINCE:
                reasons[name] = emulated_by_gpu(name, capability, vendor.HAS_TF32)
    return {name: reason for name, reason in reasons.items() if reason}
