"""torch.compile: matmul compiled by Inductor with `max-autotune`, which chooses between generated
Triton kernels and cuBLAS."""

import functools
import importlib
import os
from typing import Any

import torch

from mfulab.kernels.base import Launch, MatmulKernel
from mfulab.kernels.torch_matmul import Torch, round_to_tf32


class TorchCompiled(MatmulKernel):
    """Returns a new tensor per call, like the compiled function. Autotuning happens in the first
    call."""

    family = "library"
    after = "torch_scaled_fast"
    adds = "torch.compile: the fastest of cuBLAS's and generated Triton kernels"
    devices = ("cpu", "cuda")
    precisions = ("fp64", "fp32", "tf32", "fp16", "bf16")

    def require(self, device: str, shape: Any) -> None:
        super().require(device, shape)
        Torch(self.precision).require(device, shape)

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        round_to_tf32(self.precision == "tf32")
        _compiled()  # so that the first call's time does not include imports
        return (a[0], b[0]) if len(a) == 1 else (a, b)

    def run(self, *operands: Any, launch: Launch) -> Any:
        return _compiled()(*operands)


@functools.cache
def _compiled() -> Any:
    import platformdirs

    # Inductor runs code from its cache, by default a folder in /tmp that another user may have
    # created. A cached graph does not know the CPU's instructions: on another CPU of the same home
    # folder it hangs or damages memory.
    instructions = torch.backends.cpu.get_cpu_capability()
    folder = platformdirs.user_cache_path("mfulab") / "inductor" / instructions
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    importlib.import_module("torch._inductor.compile_fx")
    return torch.compile(torch.matmul, mode="max-autotune-no-cudagraphs", dynamic=False)
