"""torch.compile: the matmul as Inductor chooses it, `max-autotune` among generated Triton kernels
and cuBLAS's."""

import functools
import importlib
import os
from typing import Any

import torch

from mfulab.kernels.base import Launch, MatmulKernel
from mfulab.kernels.torch_matmul import Torch, round_to_tf32


class TorchCompiled(MatmulKernel):
    """Returns a new tensor at each call, as the compiled function does; autotuning is in the first
    call's time."""

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
        _compiled()  # so that the first call's time is without imports
        return (a[0], b[0]) if len(a) == 1 else (a, b)

    def run(self, *operands: Any, launch: Launch) -> Any:
        return _compiled()(*operands)


@functools.cache
def _compiled() -> Any:
    import platformdirs

    # Inductor runs the code that it finds in its cache, by default a folder in /tmp that anybody
    # may have made before.
    os.environ.setdefault(
        "TORCHINDUCTOR_CACHE_DIR", str(platformdirs.user_cache_path("mfulab") / "inductor")
    )
    importlib.import_module("torch._inductor.compile_fx")
    return torch.compile(torch.matmul, mode="max-autotune-no-cudagraphs", dynamic=False)
