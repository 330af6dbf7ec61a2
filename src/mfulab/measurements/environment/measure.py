"""Describes the machine and the software that all other numbers are measured with."""

import contextlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path

import psutil
import threadpoolctl
import torch

from mfulab.core.measurement import Measured
from mfulab.core.said import packed_all
from mfulab.device import GPU, cpu, gpu, identity, is_gpu, vendors
from mfulab.device.compute import prepare
from mfulab.measurements.environment import EnvironmentConfig, EnvironmentRow
from mfulab.timing.probe import best_now

PROBED_S = 0.2

# Prefixes of variables that set the number of threads, their placement and spinning, and the CPU
# features that libraries may use.
SETTINGS = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMBA_", "GLIBC_TUNABLES", "MALLOC_"),
    *("ATEN_CPU_", "ONEDNN_MAX_", "DNNL_MAX_", "NPY_DISABLE_"),
)

# Packages that measured numbers depend on.
PACKAGES = (
    *(
        "mfulab",
        "torch",
        "numpy",
        "numba",
        "numba-cuda",
        "cuda-python",
        "cuda-bindings",
        "cuda-core",
        "nvmath-python",
    ),
    *(
        "triton",
        "transformers",
        "nvidia-ml-py",
        "psutil",
        "snakemake",
        "hydra-core",
        "pandas",
        "seaborn",
    ),
)


def measure(config: EnvironmentConfig, folder: Path) -> Measured:
    """Returns one row. Columns are None if this machine does not report them."""
    device, _ = prepare(config.device)
    processor = cpu.cpu()
    logical = cpu.logical_cpus()
    gpus = next(filter(None, (vendor.describe_all() for vendor in vendors.makers())), [])
    if is_gpu(device):
        for facts in gpus:
            facts.setdefault("sms", _sms(str(facts["uuid"])))
    settings = {key: os.environ[key] for key in sorted(os.environ) if key.startswith(SETTINGS)}
    row = EnvironmentRow(
        device=device.type,
        device_name=gpu.properties_of(device).name if is_gpu(device) else processor.name,
        python=platform.python_version(),
        packages=json.dumps(packages()),
        operating_system=operating_system(),
        cpu_name=processor.name,
        cpu_physical_cores=cpu.physical_cores(logical),
        cpu_logical_cores=len(logical),
        cpu_machine_cores=psutil.cpu_count(),
        cpu_limit=cpu.cpu_limit(),
        cpu_mhz=processor.clock_mhz,
        cpu_vector_flags=" ".join(cpu.vector_flags(processor.flags)) or None,
        memory_total_bytes=psutil.virtual_memory().total,
        memory_limit_bytes=cpu.memory_limit_bytes(),
        virtual_machine=processor.virtual,
        blas_threads=json.dumps(blas_threads()),
        gpus=json.dumps(gpus) if gpus else None,
        driver=next(filter(None, (vendor.driver() for vendor in vendors.makers())), None),
        cuda=torch.version.cuda,
        cpu_governor=cpu.governor(),
        cpu_turbo=cpu.turbo(),
        huge_pages=cpu.huge_pages(),
        thread_settings=json.dumps(settings),
    )
    # on a GPU none is left unused, and probing would initialise CUDA only to describe the machine
    if device.type == "cpu":
        row.gpu_unused = packed_all(filter(None, [identity.unused()]))
        row.probe_product_s, row.probe_copy_s = best_now(device, PROBED_S)
    return Measured(row)


def packages() -> dict[str, str]:
    """Returns name → version of the installed packages that matter for a measurement."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def operating_system() -> str:
    """Returns distribution, kernel and architecture as one text. Without a distribution name, the
    platform's name stands in its place."""
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        name = platform.platform(terse=True)
    return f"{name}, {platform.system()} {platform.release()}, {platform.machine()}"


def blas_threads() -> dict[str, int]:
    """Returns the number of threads of each BLAS and OpenMP pool in this process, and of torch's
    two pools."""
    pools = threadpoolctl.threadpool_info()
    threads = {f"{pool['internal_api']} ({pool['prefix']})": pool["num_threads"] for pool in pools}
    return {
        **threads,
        "torch": torch.get_num_threads(),
        "torch interop": torch.get_num_interop_threads(),
    }


def _sms(uuid: str) -> int | None:
    """Number of SMs of the GPU with this UUID, or None if torch does not see it."""
    for index in range(torch.cuda.device_count()):
        if uuid.endswith(gpu.uuid_of(torch.device(GPU, index))):
            return torch.cuda.get_device_properties(index).multi_processor_count
    return None
