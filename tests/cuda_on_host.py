"""Compiles a CUDA C rung by the C++ compiler and runs it on the host: its index arithmetic, masks and barriers."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from mfulab.kernels.cuda_c import CudaC
from mfulab.kernels.nvrtc import SOURCES

HERE = Path(__file__).parent / "cuda_on_host"
ENTRY = """
#include "device.h"
#include "{source}"
extern "C" void run(const int* grid, const int* block, const void* a, const void* b, void* c, int m, int n, int k) {{
    host::launch({{grid[0], grid[1], grid[2]}}, {{block[0], block[1], block[2]}}, [=] {{
        matmul(static_cast<const {operand}*>(a), static_cast<const {operand}*>(b), static_cast<{result}*>(c), m, n, k);
    }});
}}
"""


@functools.cache
def _library(source: str, defines: tuple[tuple[str, str], ...]) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler to run CUDA C on the host with")
    names = dict(defines)
    operand = names.get("OPERAND") or names.get("REAL") or "float"
    folder = Path(tempfile.mkdtemp())
    (folder / "entry.cpp").write_text(
        ENTRY.format(source=SOURCES / source, operand=operand, result=names.get("RESULT", operand))
    )
    command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-w", f"-I{HERE}", f"-I{SOURCES}"]
    command += [f"-D{key}={value}" for key, value in defines]
    subprocess.run([*command, str(folder / "entry.cpp"), "-o", str(folder / "entry.so")], check=True)
    return ctypes.CDLL(str(folder / "entry.so"))


def run_on_host(kernel: CudaC, a, b, c, shape) -> None:
    """Writes A·B into C; torch CPU tensors."""
    launch = kernel.launch(shape)
    library = _library(kernel.source, tuple(sorted(kernel.defines().items())) + launch.defines)
    three = ctypes.c_int * 3

    def filled(sides):
        return three(*sides, *[1] * (3 - len(sides)))

    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c)]
    library.run(filled(launch.grid), filled(launch.block), *pointers, shape.m, shape.n, shape.k)
