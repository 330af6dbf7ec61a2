"""Finds the accelerators of this machine through torch, NVML or the system. Uses only what is
already installed."""

from __future__ import annotations

import os
import sys
from typing import Iterator, NamedTuple

from .facts import datasheets
from .lookup import Peak, peak

_PCI = "/sys/bus/pci/devices"
# PCI classes of displays (03) and processing accelerators (12), and the vendors whose devices count.
_CLASSES = ("0x03", "0x12")
_VENDORS = ("10de", "1002")


class Device(NamedTuple):
    """An accelerator of this machine."""

    name: str  # its name in torch or the driver, or its PCI id
    found_by: str  # torch, NVML, sysfs or the system
    units: int | None = None
    pci_id: str | None = None

    def peak(self, dtype: object, sparse: bool = False) -> Peak:
        """Returns its peak in a format. Raises the same errors as `peak`."""
        return peak(self.name, dtype, sparse, self.units, self.pci_id)


def detect() -> list[Device]:
    """Accelerators of this machine, in the order of the first source that finds any. Empty if there
    are none.

    Asks torch first if the program has already imported it, then NVML, Linux's sysfs and the name
    of Apple's chip. Imports torch only if these find nothing.
    """
    from importlib.util import find_spec  # imported here, as a look-up by name does not need it

    sources = [_by_nvml, _by_sysfs, _by_apple]
    if "torch" in sys.modules:
        sources.insert(0, _by_torch)
    elif find_spec("torch"):
        sources.append(_by_torch)
    for source in sources:
        try:
            found = list(source())
        except Exception:  # noqa: S112 (a failing driver, library or file counts as no answer)
            continue
        if found:
            return found
    return []


def _by_torch() -> Iterator[Device]:
    import torch

    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is None or not module.is_available():
            continue
        for index in range(module.device_count()):
            properties = module.get_device_properties(index)
            units = getattr(properties, "multi_processor_count", None)
            yield Device(properties.name, "torch", units)


def _by_nvml() -> Iterator[Device]:
    import pynvml

    pynvml.nvmlInit()
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(handle)
            # device id in the upper half, vendor id in the lower
            packed = pynvml.nvmlDeviceGetPciInfo(handle).pciDeviceId
            pci_id = f"{packed & 0xFFFF:04x}:{packed >> 16:04x}"
            text = name.decode() if isinstance(name, bytes) else name
            yield Device(text, "NVML", pci_id=pci_id)
    finally:
        pynvml.nvmlShutdown()


def _by_sysfs(folder: str = _PCI) -> Iterator[Device]:
    listed = {pci_id for sheet in datasheets() for pci_id in sheet.pci_ids}
    for slot in sorted(os.listdir(folder)):
        vendor, device, kind = (
            _read(os.path.join(folder, slot, name)) for name in ("vendor", "device", "class")
        )
        pci_id = f"{vendor[2:]}:{device[2:]}"
        computes = kind.startswith(_CLASSES) and vendor[2:] in _VENDORS
        if pci_id in listed or computes:
            yield Device(pci_id, "sysfs", pci_id=pci_id)


def _by_apple() -> Iterator[Device]:
    import platform
    import subprocess

    if platform.system() != "Darwin":
        return
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if name.startswith("Apple M"):
        yield Device(name, "the system", _apple_cores())


def _apple_cores() -> int | None:
    """Number of cores of Apple's GPU, which differs between chips of the same name. None if not
    reported."""
    import re
    import subprocess

    command = ["/usr/sbin/ioreg", "-r", "-c", "AGXAccelerator", "-d", "1"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'"gpu-core-count" = (\d+)', output)
    if found is None:
        return None
    return int(found[1])


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()
