"""`mfulab measure train.py`: runs a script as python would, and measures the steps of the model in it."""

import builtins
import importlib.util
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from mfulab.core.errors import ConfigurationError


def run(words: Sequence[str], is_module: bool, out: Path | None, **wanted: Any) -> Callable[[], int]:
    """Gives what runs the script, outside of whatever makes sentences of errors: they are the script's own. Raises
    ConfigurationError where there is no such script, or no folder for the row."""
    script, *arguments = words
    if not is_module and not Path(script).is_file():
        module = f"mfulab measure -m {script.removesuffix('.py').replace('/', '.')}"
        raise ConfigurationError(f"{script}: no such script. A module is given as `{module}`")
    if out and not out.absolute().parent.is_dir():
        raise ConfigurationError(f"--json {out}: no such folder")
    wanted["out"] = out and out.absolute()  # the script may go elsewhere
    return lambda: _measured(script, arguments, is_module, wanted)


def _measured(script: str, arguments: Sequence[str], is_module: bool, wanted: dict[str, Any]) -> int:
    pid, followers = os.getpid(), list[Any]()

    def begin() -> None:
        from mfulab.loop.interactive.script import Script

        followers.append(Script(script, **wanted))

    waits = _Imports({"torch": begin, "torch._dynamo": lambda: [follower.follow_compiler() for follower in followers]})
    sys.meta_path.insert(0, waits)
    if "torch" in sys.modules:
        begin()
    error: BaseException | None = None
    try:
        _as_python(script, arguments, is_module)
    except BaseException as raised:
        error = None if isinstance(raised, SystemExit) else raised
        raise
    finally:
        waits.end()
        if followers:
            followers[0].end(error)
        elif os.getpid() == pid and "torch" not in sys.modules:
            how = f"ended by {type(error).__name__} before" if error else "it ended without"
            print(f"mfulab measure {script}: nothing is measured: {how} importing torch", file=sys.stderr)
    return 0


def _as_python(script: str, arguments: Sequence[str], is_module: bool) -> None:
    """Runs a script or module as `__main__`; tracebacks begin in it."""
    main: Any = ModuleType("__main__")
    main.__builtins__ = builtins
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"], sys.argv = main, [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd() if is_module else Path(script).resolve().parent)
    try:
        if is_module:
            runpy._run_module_as_main(script)  # type: ignore[attr-defined]  # what `python -m` itself calls
            return
        path = str(Path(script).absolute())
        main.__file__, main.__cached__, main.__loader__ = path, None, SourceFileLoader("__main__", path)
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, main.__dict__)  # noqa: S102 (the user's own script)
    except BaseException as error:
        own, trace, shown = error, error.__traceback__ and error.__traceback__.tb_next, sys.excepthook

        def hook(kind: type[BaseException], raised: BaseException, its: TracebackType | None) -> None:
            if raised is own:  # without the frame of this function
                its = raised.__traceback__ = trace
            shown(kind, raised, its)

        sys.excepthook = hook
        raise


class _Imports(MetaPathFinder):
    """Calls a function as soon as a module has been imported, whatever happens in the function."""

    def __init__(self, then: dict[str, Callable[[], object]]) -> None:
        self._then = then

    def end(self) -> None:
        """Waits for no import any more."""
        self._then.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._then:
            return None
        then = self._then.pop(name)  # first: find_spec asks this finder again
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            self._then[name] = then
            return spec
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            try:
                then()
            except Exception as error:
                print(f"mfulab measure: nothing is measured: {type(error).__name__}: {error}", file=sys.stderr)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec
