"""What figures are made of: their words and numbers in words here, their drawings in the modules of this folder."""

from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, quantity, significant

__all__ = ["Figure", "Texts", "percent", "quantity", "significant"]
