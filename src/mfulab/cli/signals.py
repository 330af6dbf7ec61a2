"""Lets SIGTERM and SIGHUP end a command like an exception: cleanup runs and a message names the
signal."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator

from mfulab.core.printing import say

Handler = Callable[[int, object], None]


class SignalExit(SystemExit):
    """Exit caused by a signal, with the status 128 + signal number that shells use."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


def end_by_signal(number: int, _: object) -> None:
    """Handles a signal by raising SignalExit; ignores later ones, so that cleanup is not
    interrupted."""
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise SignalExit(number)


@contextlib.contextmanager
def ended_by_signals(handler: Handler = end_by_signal) -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the block with SignalExit, raised by `handler`; prints which
    signal it was."""
    with contextlib.ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, handler))
        try:
            yield
        except SignalExit as exit_:
            say(f"mfulab: ended by {exit_.name}.", file=sys.stderr)
            raise
