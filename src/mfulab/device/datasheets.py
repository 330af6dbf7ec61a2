"""Datasheets of accelerators as this project's commands ask for them: what is wrong is one sentence
to the user. The facts are those of `mfulab.peaks`."""

from mfulab import peaks
from mfulab.core.errors import ConfigurationError, shortened
from mfulab.core.said import Said
from mfulab.peaks.facts import Datasheet as Datasheet
from mfulab.peaks.facts import datasheets as datasheets
from mfulab.peaks.names import normalised as normalised
from mfulab.peaks.names import typed_names as typed_names

MOST = 8  # products that a message names


class UnknownDeviceError(ConfigurationError, LookupError):
    """No datasheet here is this device's, or several could be; the message lists the choices."""


def find(device: str, units: int | None = None, pci_id: str | None = None) -> Datasheet:
    """The datasheet of a driver's name (`NVIDIA H200`) or PCI id (`10de:2330`); UnknownDeviceError
    if unsure."""
    try:
        return peaks.find(device, units, pci_id)
    except peaks.UnknownDeviceError as error:
        raise UnknownDeviceError(str(error), _said(device, error.choices)) from None


def _said(device: str, choices: tuple[Datasheet, ...]) -> Said:
    """Says what is wrong with a device's name, for a language that the peaks' package lacks."""
    named = {"device": shortened(device)}
    if not choices:
        return Said("no_datasheet", named)
    products = ", ".join(sheet.device for sheet in choices[:MOST])
    return Said("no_datasheet_near", named | {"near": products})
