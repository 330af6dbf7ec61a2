"""Compiles CUDA C with the C++ compiler and runs it on the host, to test index arithmetic, masks
and barriers."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from mfulab.kernels.cuda_c import CudaC
from mfulab.kernels.nvrtc import SOURCES

HERE = Path(__file__).parent / "cuda_on_host"
# -fno-gnu-unique: a process-wide unique symbol would be shared by kernels with other tile sizes.
OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-w", "-fno-strict-aliasing", "-fno-gnu-unique")
INCLUDED = ("<algorithm>", "<map>", '"device.h"', '"mma.h"')
ENTRY = """
#include "device.h"
#include "{source}"
typedef {operand} Operand;
typedef {result} Result;
extern "C" const char* run(const int* grid, const int* block, const Operand* a, const Operand* b, Result* c,
                           int batch, int m, int n, int k) {{
    return host::launch({{grid[0], grid[1], grid[2]}}, {{block[0], block[1], block[2]}}, [=] {{ {call}; }});
}}
"""


class HostError(RuntimeError):
    """Raised where the hardware would hang or fail: a deadlock, an unaligned access, misuse of a
    barrier."""


def build(entry: str, defines: Mapping[str, str], folder: Path):
    """Compiles a C++ source and returns its function `run`. Its includes may be in `folder`. A call
    raises HostError."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler to run CUDA C on the host with")
    # Not by -D: the compiler would not use the precompiled header if it contains one of these
    # names, such as TYPE.
    macros = "".join(f"#define {key} {value}\n" for key, value in defines.items())
    (folder / "entry.cpp").write_text(macros + entry)
    command = [
        compiler,
        *OPTIONS,
        "-shared",
        "-include",
        str(_precompiled(compiler)),
        f"-I{folder}",
        f"-I{HERE}",
    ]
    subprocess.run(
        [*command, str(folder / "entry.cpp"), "-o", str(folder / "entry.so")], check=True
    )
    run = ctypes.CDLL(str(folder / "entry.so")).run
    run.restype, run.errcheck = ctypes.c_char_p, raise_fault
    return run


@functools.cache
def _precompiled(compiler: str) -> Path:
    """Precompiled header with the common includes, built once per process. Saves a third of each
    kernel's compile time."""
    header = Path(tempfile.mkdtemp()) / "all.h"
    header.write_text("".join(f"#include {name}\n" for name in INCLUDED))
    subprocess.run([compiler, *OPTIONS, f"-I{HERE}", "-x", "c++-header", str(header)], check=True)
    return header


def raise_fault(fault: bytes | None, *_) -> None:
    if fault is not None:
        raise HostError(fault.decode())


@functools.cache
def _rung(source: str, call: str, defines: tuple[tuple[str, str], ...]):
    names = dict(defines)
    operand = names.get("OPERAND") or names.get("REAL") or "float"
    types = {"operand": operand, "result": names.get("RESULT", operand)}
    folder = Path(tempfile.mkdtemp())
    copy_sources(folder)
    return build(ENTRY.format(source=source, call=call, **types), names, folder)


def copy_sources(folder: Path) -> None:
    """Copies the CUDA C sources into a folder, except headers that have a replacement for the
    host."""
    for path in SOURCES.iterdir():
        if not (HERE / path.name).exists():
            shutil.copy(path, folder)


def run_on_host(kernel: CudaC, a, b, c, shape) -> None:
    """Writes A·B into C for CPU tensors. Raises HostError."""
    launch = kernel.launch(shape)
    call = f"{kernel.entry}(a, b, c, {'m, n, k' if kernel.entry == 'matmul' else 'batch'})"
    run = _rung(kernel.source, call, tuple(sorted(kernel.defines().items())) + launch.defines)
    three = ctypes.c_int * 3

    def filled(sides):
        return three(*sides, *[1] * (3 - len(sides)))

    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c)]
    run(filled(launch.grid), filled(launch.block), *pointers, *shape)
