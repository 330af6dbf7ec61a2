"""Compiles CUDA C to machine code with NVRTC, without a GPU, and reads registers and spills from
ptxas's output."""

import functools
import io
import re
from dataclasses import dataclass
from pathlib import Path

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Resources

SOURCES = Path(__file__).parent / "cuda"


@dataclass(frozen=True)
class Compiled:
    """Machine code (cubin) for one architecture, with its resources and the compiler's log."""

    code: bytes
    resources: Resources
    log: str


@functools.cache
def compile_source(
    name: str,
    arch: str,
    defines: tuple[tuple[str, str], ...] = (),
    library: str = "",
) -> Compiled:
    """Compiles a file of `cuda/` to machine code for `arch`, such as "sm_90a". It is not PTX,
    because older drivers cannot load newer PTX. `library` is a folder of further headers, whose
    unmarked functions are compiled for the device. Raises UnsupportedError if that is not
    possible."""
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError:
        raise UnsupportedError(Said("needs_nvrtc")) from None
    options = ProgramOptions(
        name=name,
        arch=arch,
        std="c++17",
        define_macro=[(key, value) for key, value in defines],
        include_path=[*filter(None, [library]), str(SOURCES), *toolkit_headers()],
        device_as_default_execution_space=bool(library) or None,
        ptxas_options=["-v"],
    )
    messages = io.StringIO()
    try:
        program = Program((SOURCES / name).read_text(), "c++", options)
        code = program.compile("cubin", logs=messages).code
    except Exception as error:
        if "could not open source file" in str(error):
            raise UnsupportedError(Said("needs_cuda_headers", name=name)) from error
        if "--gpu-architecture" in str(error):  # CUDA 13 begins with sm_75
            raise UnsupportedError(Said("nvrtc_no_code", name=name, arch=arch)) from error
        raise
    log = messages.getvalue().replace("\0", "")
    return Compiled(bytes(code), parse_resources(log), log)


def parse_resources(log: str) -> Resources:
    """Registers per thread, static shared memory and spilled bytes from the output of `ptxas -v`
    for one kernel."""

    def number(pattern: str) -> int | None:
        match = re.search(pattern, log)
        return int(match[1]) if match else None

    registers = number(r"Used (\d+) registers")
    shared_memory_bytes = None
    if registers is not None:
        shared_memory_bytes = number(r"(\d+) bytes smem") or 0
    spilled = [int(size) for size in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)]
    spill_bytes = None
    if spilled:
        spill_bytes = sum(spilled)
    return Resources(registers, shared_memory_bytes, spill_bytes)


@functools.cache
def toolkit_headers() -> tuple[str, ...]:
    """Folders with the headers of CUDA and of its C++ library, if installed."""
    from cuda.pathfinder import find_nvidia_header_directory

    folders = (find_nvidia_header_directory(library) for library in ("nvcc", "cudart", "cccl"))
    return tuple(dict.fromkeys(folder for folder in folders if folder))
