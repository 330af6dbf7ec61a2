"""Drawings of figures, in the modules of this folder; here their words, and numbers in words."""

from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, quantity, significant

__all__ = ["Figure", "Texts", "percent", "quantity", "significant"]
