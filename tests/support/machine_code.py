"""Disassembles a cubin with nvdisasm, from pip's nvidia-cuda-nvdisasm or an installed toolkit."""

import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from cuda.pathfinder import find_nvidia_binary_utility


def disassembled(cubin: bytes) -> str:
    """Machine code as text. Skips the test without a disassembler."""
    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        pytest.skip("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return subprocess.run(
            [tool, "-c", str(path)], capture_output=True, text=True, check=True
        ).stdout


def needs_nvrtc() -> None:
    """Skips the test if NVRTC cannot be loaded."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        load_nvidia_dynamic_lib("nvrtc")
    except DynamicLibNotFoundError:
        pytest.skip("no NVRTC: pip install nvidia-cuda-nvrtc")


def instructions(text: str) -> list[tuple[int, str, str]]:
    """(address, opcode with modifiers, operands) of each instruction, without predicates."""
    found = re.findall(
        r"^\s+/\*([0-9a-f]+)\*/\s+(?:@!?U?P\d\s+)?([A-Z][\w.]+)\s*([^;]*);", text, re.MULTILINE
    )
    return [(int(address, 16), opcode, operands) for address, opcode, operands in found]


def loops(text: str) -> list[list[str]]:
    """Opcodes of each loop, from the target of a backward branch to the branch. Longest loop
    first."""
    code = instructions(text)
    labels: dict[str, int | None] = {}
    address = 0
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = None
        elif found := re.match(r"\s+/\*([0-9a-f]+)\*/", line):
            address = int(found[1], 16)
            labels.update((name, address) for name, at in labels.items() if at is None)
    bodies = []
    for at, opcode, operands in code:
        target = re.search(r"\.L_x_\d+", operands) if opcode.startswith("BRA") else None
        begin = labels.get(target[0]) if target else None
        if begin is not None and begin < at:
            bodies.append([name for address, name, _ in code if begin <= address <= at])
    return sorted(bodies, key=len, reverse=True)


def main_loops(text: str, multiplication: str) -> list[list[str]]:
    """Innermost loops that contain the multiplication."""
    multiplying = [
        body for body in loops(text) if any(re.match(multiplication, opcode) for opcode in body)
    ]
    return [body for body in multiplying if len(body) == min(map(len, multiplying))]


def resource_usage(cubin: bytes) -> dict[str, int]:
    """REG, STACK, SHARED and LOCAL of a cubin's only kernel, by cuobjdump. Skips the test without
    cuobjdump."""
    tool = find_nvidia_binary_utility("cuobjdump")
    if tool is None:
        pytest.skip("no cuobjdump: pip install nvidia-cuda-cuobjdump")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        output = subprocess.run(
            [tool, "-res-usage", str(path)], capture_output=True, text=True, check=True
        ).stdout
    return {key: int(value) for key, value in re.findall(r"\b([A-Z]+):(\d+)", output)}
