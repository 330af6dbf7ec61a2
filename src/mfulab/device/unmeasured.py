"""Detects accelerators that mfulab does not support, to explain why the CPU is measured instead."""

from mfulab.core.said import Said
from mfulab.device import system

MAKERS = {
    "0x8086": "Intel",
    "0x1da3": "Intel Gaudi",
    "0x19e5": "Huawei Ascend",
    "0x1e52": "Tenstorrent",
}  # PCI vendor identifiers (pci.ids)
INTEGRATED = "0000:00:"  # PCI bus of integrated graphics, which are not used for training


def found() -> Said | None:
    """Message that names an unsupported accelerator of this machine; None if there is none."""
    devices = system.pci_devices(tuple(MAKERS), (system.DISPLAY, system.ACCELERATOR))
    for address, maker in devices.items():
        if INTEGRATED not in address:
            return Said("not_measured_maker", maker=MAKERS[maker], address=address)
    return None
