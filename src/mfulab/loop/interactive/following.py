"""The process of a script that `mfulab measure` runs: Python runs the script itself, and mfulab
waits in it for torch to be imported. Nothing here imports torch before the script does."""

import atexit
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from mfulab.core.errors import drop_own_frames
from mfulab.core.json_text import parse_json
from mfulab.core.said import Said
from mfulab.loop.interactive.wanted import (
    Wanted,
    named_error,
    not_measured_row,
    say_not_measured,
    with_children,
)

if TYPE_CHECKING:
    from mfulab.loop.interactive.script import Script

VARIABLE = "MFULAB_MEASURE"
STARTING = Path(__file__).with_name("starting")


def environment(wanted: Wanted, given: Mapping[str, str]) -> dict[str, str]:
    """Environment in which Python follows the script that it runs. The script itself sees `given`,
    unless its children are followed too."""
    path = given.get("PYTHONPATH")
    request = {"wanted": asdict(wanted), "path": path, "process": os.getpid()}
    folders = [str(STARTING), path] if path else [str(STARTING)]
    return {
        **given,
        VARIABLE: json.dumps(request, default=str),
        "PYTHONPATH": os.pathsep.join(folders),
    }


def start() -> None:
    """Begins to follow the script that this process is about to run."""
    request = parse_json(os.environ[VARIABLE])
    out = request["wanted"].pop("out")
    wanted = Wanted(**request["wanted"], out=out and Path(out))
    if not wanted.children:
        del os.environ[VARIABLE]
        if request["path"] is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = request["path"]
    is_child = request["process"] != os.getpid()
    following = Following(replace(wanted, is_child=is_child))
    atexit.register(following.end)


class Following:
    """Waits for torch, follows the script from then on, and reports at its end what was measured,
    or why nothing was."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._process = os.getpid()
        self._script: Script | None = None
        then = {"torch": self._follow, "torch._dynamo": self._follow_compiler}
        self._imports = Imports(then, self._fail)
        sys.meta_path.insert(0, self._imports)
        if "torch" in sys.modules:
            self._follow()

    def _follow(self) -> None:
        from mfulab.loop.interactive.script import Script

        self._script = Script(self._wanted)

    def _follow_compiler(self) -> None:
        if self._script is not None:
            self._script.follow_compiler()

    def _fail(self, error: Exception) -> None:
        say_not_measured(self._wanted, named_error(error))

    def end(self) -> None:
        """Ends when the script ends; does nothing in a fork."""
        self._imports.end()
        if os.getpid() != self._process:
            return
        error: BaseException | None = getattr(sys, "last_value", None)
        if self._script is not None:
            self._script.end(error)
        elif "torch" not in sys.modules and not self._wanted.is_child:
            how = Said("ended_without_torch")
            if error:
                how = Said("ended_before_torch", error=type(error).__name__)
            why = with_children(self._wanted, how)
            say_not_measured(self._wanted, why)
            if self._wanted.out is not None:
                with suppress(OSError):
                    row = json.dumps({"script": self._wanted.name, **not_measured_row(why)})
                    self._wanted.out.write_text(row + "\n", encoding="utf-8")


class Imports(MetaPathFinder):
    """Calls a function as soon as a module has been imported. Errors of the function go to
    `failed`."""

    def __init__(
        self, then: dict[str, Callable[[], None]], failed: Callable[[Exception], None]
    ) -> None:
        self._then = then
        self._failed = failed

    def end(self) -> None:
        """Stops waiting for imports."""
        self._then.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in self._then:
            return None
        then = self._then.pop(fullname)  # first, since find_spec calls this finder again
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            self._then[fullname] = then
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def executed(module: ModuleType) -> None:
            del loader.exec_module  # type: ignore[method-assign]
            try:
                execute(module)
            except BaseException as error:
                drop_own_frames(error)
                raise
            try:
                then()
            except Exception as error:
                self._failed(error)

        loader.exec_module = executed  # type: ignore[method-assign]
        return spec
