"""Accelerators that are there and that mfulab does not measure: the CPU is measured in their place,
and this says so."""

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
ACCELERATOR = "0x12"  # how the PCI class of a device begins
INTEGRATED = "0000:00:"  # the bus of a CPU's own graphics, which nobody trains on


def found() -> Said | None:
    """Says which accelerator of another maker is there; None without one."""
    for address in system.names(DEVICES):
        maker = MAKERS.get(system.text(f"{DEVICES}/{address}/vendor") or "")
        kind = system.text(f"{DEVICES}/{address}/class") or ""
        if maker and kind.startswith((DISPLAY, ACCELERATOR)) and INTEGRATED not in address:
            return Said("not_measured_maker", {"maker": maker, "address": address})
    return None
