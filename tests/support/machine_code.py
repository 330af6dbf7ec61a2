"""Disassembles a cubin with the tool of pip's nvidia-cuda-nvdisasm or of an installed toolkit."""

import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from cuda.pathfinder import find_nvidia_binary_utility


def disassembled(cubin: bytes) -> str:
    """Machine code as text; skips the test where there is no disassembler."""
    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        pytest.skip("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=True).stdout


def needs_nvrtc() -> None:
    """Skips the test where NVRTC cannot be loaded."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        load_nvidia_dynamic_lib("nvrtc")
    except DynamicLibNotFoundError:
        pytest.skip("no NVRTC: pip install nvidia-cuda-nvrtc")


def resource_usage(cubin: bytes) -> dict[str, int]:
    """REG, STACK, SHARED, LOCAL of a cubin's one kernel, by cuobjdump; skips the test where there is none."""
    tool = find_nvidia_binary_utility("cuobjdump")
    if tool is None:
        pytest.skip("no cuobjdump: pip install nvidia-cuda-cuobjdump")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        said = subprocess.run([tool, "-res-usage", str(path)], capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, value in re.findall(r"\b([A-Z]+):(\d+)", said)}
