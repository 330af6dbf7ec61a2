"""Commands that a signal ends as an exception does: nothing stays behind, and a sentence says so."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator

from mfulab.core.printing import say

Handler = Callable[[int, object], None]


class Left(SystemExit):
    """A signal's end of this process, by the status that a shell gives it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


def leave(number: int, _: object) -> None:
    """Ends this process; a second signal finds it ending already."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Left(number)


@contextlib.contextmanager
def leaving_by(handler: Handler = leave) -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end the block as exceptions do, by this handler, and says which."""
    with contextlib.ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, handler))
        try:
            yield
        except Left as left:
            say(f"mfulab: ended by {left.name}.", file=sys.stderr)
            raise
