"""Accelerator datasheets for this package's commands, with errors that the command line can show.
The facts come from `mfulab.peaks`."""

from mfulab import peaks
from mfulab.core.errors import ConfigurationError, shortened
from mfulab.core.said import Said
from mfulab.peaks.facts import Datasheet as Datasheet
from mfulab.peaks.facts import datasheets as datasheets
from mfulab.peaks.names import normalised as normalised
from mfulab.peaks.names import typed_names as typed_names

MOST_LISTED = 8  # products listed in a message


class UnknownDeviceError(ConfigurationError, LookupError):
    """Raised if no datasheet, or more than one, matches a device. The message lists the choices."""


def find(device: str, units: int | None = None, pci_id: str | None = None) -> Datasheet:
    """Datasheet for a driver's device name (`NVIDIA H200`) or PCI id (`10de:2330`). Raises
    UnknownDeviceError if none or several match."""
    try:
        return peaks.find(device, units, pci_id)
    except peaks.UnknownDeviceError as error:
        raise UnknownDeviceError(str(error), _said(device, error.choices)) from None


def _said(device: str, choices: tuple[Datasheet, ...]) -> Said:
    """Error message for an unknown device, translatable, unlike that of the peaks package."""
    numbers = {"device": shortened(device)}
    if not choices:
        return Said("no_datasheet", numbers)
    products = ", ".join(sheet.device for sheet in choices[:MOST_LISTED])
    return Said("no_datasheet_near", numbers | {"near": products})
