"""Clocks, windows, samplers and statistics; and, called as `mfulab.measure(…)`, the ladder of your own loop."""

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    """This package, which is also the function that users call: both are named `mfulab.measure`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from mfulab.measure.loop import Window

        return Window(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
