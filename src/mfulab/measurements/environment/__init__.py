"""The machine: device, system and packages."""

from mfulab.core.configs import StepConfig
from mfulab.core.groups import DeviceConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Row, column, json_column


class EnvironmentConfig(StepConfig):
    """The machine: device, system and packages."""

    device: DeviceConfig = DeviceConfig()


class EnvironmentRow(Row):
    """One row per machine. Lists and mappings are JSON text."""

    device: str | None = column("Type of the device, such as cpu or cuda.")
    device_name: str | None = column("Name of the device as the driver or the CPU reports it.")
    python: str | None = column("Version of Python.")
    packages: str | None = json_column("package that matters to a measurement → version.")
    operating_system: str | None = column("Name and version of the operating system.")
    cpu_name: str | None = column("Name that the CPU reports.")
    cpu_physical_cores: int | None = column("Physical cores that this process may use.")
    cpu_logical_cores: int | None = column("Logical cores that this process may use.")
    cpu_machine_cores: int | None = column("Logical cores of the machine.")
    cpu_limit: float | None = column("CPUs granted by the cgroup quota.")
    cpu_mhz: float | None = column("Clock as the system reports it.")
    cpu_vector_flags: str | None = column("Space-separated vector extensions.")
    memory_total_bytes: int | None = column("Memory of the machine.")
    memory_limit_bytes: int | None = column("Memory granted by the cgroup.")
    virtual_machine: bool | None = column("True where a hypervisor reports itself.")
    blas_threads: str | None = json_column("library → threads of every BLAS or OpenMP pool.")
    gpus: str | None = json_column(
        "name, uuid, compute capability, SMs, clocks, memory, power limit of each GPU."
    )
    gpu_unused: str | None = column(
        "GPU that is there and cannot be measured, with the reason and what to do."
    )
    driver: str | None = column("Version of the GPU's driver.")
    cuda: str | None = column("CUDA version that torch was built for.")
    cpu_governor: str | None = column("Frequency governor; a virtual machine reports none.")
    cpu_turbo: bool | None = column("True if the clock may rise above its nominal rate.")
    huge_pages: str | None = column("Transparent huge pages: always, madvise or never.")
    thread_settings: str | None = json_column(
        "variables of the environment that place threads or limit a library."
    )
    probe_product_s: float | None = column("Best time of the probe's matmul, on a CPU.")
    probe_copy_s: float | None = column("Best time of the probe's copy, on a CPU.")


MEASUREMENT = Measurement(
    "environment",
    EnvironmentConfig,
    EnvironmentRow,
    "What this machine is: {wildcards.hardware}",
    "hardware recorded device device_name python operating_system",
    priority=30,
    runtime_min=5,
    position=120,
)
