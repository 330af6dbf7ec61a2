"""Detects accelerators that mfulab does not support, to explain why the CPU is measured instead."""

from mfulab.core.said import Said
from mfulab.device import system

DEVICES = "sys/bus/pci/devices"
MAKERS = {
    "0x8086": "Intel",
    "0x1da3": "Intel Gaudi",
    "0x19e5": "Huawei Ascend",
    "0x1e52": "Tenstorrent",
}  # PCI vendor identifiers (pci.ids)
DISPLAY = "0x03"
ACCELERATOR = "0x12"  # first byte of a device's PCI class
INTEGRATED = "0000:00:"  # PCI bus of integrated graphics, which are not used for training


def found() -> Said | None:
    """Message that names an unsupported accelerator of this machine; None if there is none."""
    for address in system.names(DEVICES):
        maker = MAKERS.get(system.text(f"{DEVICES}/{address}/vendor") or "")
        kind = system.text(f"{DEVICES}/{address}/class") or ""
        if maker and kind.startswith((DISPLAY, ACCELERATOR)) and INTEGRATED not in address:
            return Said("not_measured_maker", {"maker": maker, "address": address})
    return None
