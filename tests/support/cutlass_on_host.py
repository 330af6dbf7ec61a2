"""Runs CUTLASS's kernel on the host, with plain C++ in place of the PTX in its templates."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mfulab.kernels.base import Shape
from mfulab.kernels.cutlass import Cutlass, headers
from mfulab.kernels.nvrtc import SOURCES, toolkit_headers

from . import cuda_on_host

HERE = Path(__file__).parent / "cutlass_on_host"


@functools.cache
def _built(precision: str) -> Callable[..., None]:
    """Function `run` for a precision; a call raises HostError. Skips the test without a
    compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to run CUTLASS on the host with")
    folder = Path(tempfile.mkdtemp())
    defines = [f"#define {name} {value}" for name, value in Cutlass(precision).defines().items()]
    (folder / "entry.cpp").write_text("\n".join([*defines, '#include "run.cpp"']))
    # the host's headers first, as they replace CUTLASS's of the same names
    folders = [HERE, cuda_on_host.HERE, SOURCES, headers(), *toolkit_headers()]
    library = folder / "entry.so"
    included = [f"-I{path}" for path in folders]
    options = [*cuda_on_host.OPTIONS, "-fpermissive", "-shared", *included]
    subprocess.run([compiler, *options, str(folder / "entry.cpp"), "-o", str(library)], check=True)
    run = ctypes.CDLL(str(library)).run
    run.restype = ctypes.c_char_p
    run.errcheck = cuda_on_host.raise_fault
    return run


def run_on_host(
    precision: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, shape: Shape
) -> None:
    """Writes A·B into C with the kernel of a precision, for CPU tensors. Raises HostError."""
    launch = Cutlass(precision).launch(shape)
    three = ctypes.c_int * 3
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c)]
    _built(precision)(
        three(*launch.grid), three(*launch.block, 1, 1), *pointers, shape.m, shape.n, shape.k
    )
