"""Starts to follow a script: Python imports this before the script that `mfulab measure` starts.
Its folder is on the path for this import alone. A `sitecustomize` of the user's own comes next."""

import sys
from pathlib import Path

_FOLDER = Path(__file__).parent


def _start() -> None:
    """Begins to follow the script; an error of ours stops no script."""
    sys.path.append(str(_FOLDER.parents[3]))
    try:
        from mfulab.loop.interactive.following import start

        start()
    except Exception as error:
        sys.stderr.write(f"mfulab measure: nothing is measured: {type(error).__name__}: {error}\n")
    finally:
        sys.path.pop()


def _give_way() -> None:
    """Imports the user's own module of this name. Raises ImportError if there is none, which Python
    expects."""
    sys.path[:] = [folder for folder in sys.path if folder != str(_FOLDER)]
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401


_start()
_give_way()
