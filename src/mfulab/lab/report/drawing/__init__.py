"""Drawing of figures. This module re-exports the names that all figures need."""

from typing import TypeAlias

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, quantity, significant

Legend: TypeAlias = list[Line2D]  # the entries of a figure's legend
__all__ = ["Figure", "Legend", "Texts", "percent", "quantity", "significant"]
