"""The machine: device, system and packages."""

from pydantic import Field

from mfulab.core.configs import StepConfig
from mfulab.core.groups import DeviceConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Row


class EnvironmentConfig(StepConfig):
    """The machine: device, system and packages."""

    device: DeviceConfig = DeviceConfig()


class EnvironmentRow(Row):
    """One row a machine. Lists and mappings are JSON text."""

    device: str | None = Field(None, description="cpu or cuda.")
    device_name: str | None = Field(None, description="Name of the device as its driver reports it.")
    python: str | None = Field(None, description="Version of Python.")
    packages: str | None = Field(None, description="JSON: name → version of the packages that matter to a measurement.")
    operating_system: str | None = Field(None, description="Name and version of the system.")
    cpu_name: str | None = Field(None, description="Model of the CPU.")
    cpu_physical_cores: int | None = Field(None, description="Physical cores that this process may use.")
    cpu_logical_cores: int | None = Field(None, description="Logical cores that this process may use.")
    cpu_machine_cores: int | None = Field(None, description="Logical cores of the machine.")
    cpu_limit: float | None = Field(None, description="CPUs granted by the cgroup quota.")
    cpu_mhz: float | None = Field(None, description="Clock of the CPU, as the system reports it.")
    cpu_vector_flags: str | None = Field(None, description="Space-separated vector extensions.")
    memory_total_bytes: int | None = Field(None, description="Main memory of the machine.")
    memory_limit_bytes: int | None = Field(None, description="Granted by the cgroup.")
    virtual_machine: bool | None = Field(None, description="Whether a hypervisor was found.")
    blas_threads: str | None = Field(None, description="JSON: library → threads of every BLAS or OpenMP pool.")
    gpus: str | None = Field(
        None, description="JSON list: name, uuid, compute capability, SMs, clocks, memory, power limit of each GPU."
    )
    driver: str | None = Field(None, description="Version of the GPU's driver.")
    cuda: str | None = Field(None, description="CUDA version that torch was built for.")
    cpu_governor: str | None = Field(None, description="Frequency governor; a virtual machine reports none.")
    cpu_turbo: bool | None = Field(None, description="True if the clock may rise above its nominal rate.")
    huge_pages: str | None = Field(None, description="Transparent huge pages: always, madvise or never.")
    thread_settings: str | None = Field(
        None,
        description="JSON: variables of the environment that place threads or let them spin, as the runs see them.",
    )
    probe_product_s: float | None = Field(None, description="The probe's matmul at its best, on a CPU.")
    probe_copy_s: float | None = Field(None, description="The probe's copy at its best, on a CPU.")


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
