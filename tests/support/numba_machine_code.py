"""Compiles a Numba CUDA kernel to PTX and to machine code for an architecture, without a GPU."""

from cuda.core import Program, ProgramOptions
from numba import cuda


def ptx_of(dispatcher, argument_types, capability=(9, 0)) -> str:
    """PTX of a cuda.jit function for arguments of these Numba types, including its register
    limit."""
    text, _ = cuda.compile(
        dispatcher.py_func, argument_types, cc=capability, output="ptx", device=False, abi="numba"
    )
    text = text.decode() if isinstance(text, bytes) else text
    most = dispatcher.targetoptions.get("max_registers")
    # At run time Numba hands the limit to the linker; a directive does the same.
    return text if most is None else text.replace("\n)\n{", f"\n)\n.maxnreg {most}\n{{", 1)


def assembled(ptx: str, arch: str = "sm_90") -> bytes:
    """Machine code from PTX, by the compiler's own assembler."""
    return bytes(Program(ptx, "ptx", ProgramOptions(arch=arch)).compile("cubin").code)
