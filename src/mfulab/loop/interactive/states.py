"""States of a loop's thread, and a table of the transitions between them."""

import threading
from enum import Enum, auto

import torch


class LoopState(Enum):
    """Pass that the thread is in. The counter is no state of its own: it may be on in all states
    but the first."""

    RESTING = auto()  # no hook is on
    IDLE = auto()  # between passes
    FORWARD = auto()
    HIDDEN = auto()  # a call made by compiled code, which only the counter reveals
    BACKWARD = auto()


class Event(Enum):
    """Moments that hooks see."""

    LISTEN = auto()  # hooks go on
    REST = auto()  # hooks come off
    CALL = auto()  # of a model, the outermost
    HIDDEN_CALL = auto()  # the same, in compiled code
    RETURN = auto()  # of the outermost call
    BACKWARD = auto()
    BACKWARD_END = auto()


TRANSITIONS = {
    (LoopState.RESTING, Event.LISTEN): LoopState.IDLE,
    (LoopState.IDLE, Event.REST): LoopState.RESTING,
    (LoopState.FORWARD, Event.REST): LoopState.RESTING,  # if forward passes are steps
    (LoopState.IDLE, Event.CALL): LoopState.FORWARD,
    (LoopState.FORWARD, Event.RETURN): LoopState.IDLE,
    (LoopState.IDLE, Event.HIDDEN_CALL): LoopState.HIDDEN,
    (LoopState.HIDDEN, Event.RETURN): LoopState.IDLE,
    (LoopState.IDLE, Event.BACKWARD): LoopState.BACKWARD,
    (LoopState.BACKWARD, Event.BACKWARD_END): LoopState.IDLE,
}


class LoopThread:
    """State of the thread that opens a loop. Calls inside a pass are parts of it; `depth` counts
    nested calls of models."""

    def __init__(self) -> None:
        self.state = LoopState.RESTING
        self.depth = 0
        self._thread = 0

    def open(self) -> None:
        """Follows the calling thread."""
        self._thread = threading.get_ident()
        self.state = LoopState.RESTING

    def is_own_thread(self) -> bool:
        """True if called in the thread that is followed."""
        return threading.get_ident() == self._thread

    def is_foreign_call(self) -> bool:
        """True for a call in another thread, outside of a backward pass there."""
        return not self.is_own_thread() and torch._C._current_autograd_node() is None

    def move(self, event: Event) -> bool:
        """Changes the state by the table; False for an event that is part of the running pass."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            return False
        self.state = after
        if after in (LoopState.IDLE, LoopState.RESTING):
            self.depth = 0
        return True

    def enter(self, is_hidden: bool) -> bool:
        """Records a call of a model; True if a forward pass begins with it."""
        self.depth += 1
        event = Event.HIDDEN_CALL if is_hidden else Event.CALL
        return self.move(event) and self.state is LoopState.FORWARD

    def leave(self) -> bool:
        """Records the end of a call; True if a forward pass ends with it."""
        self.depth = max(0, self.depth - 1)
        before = self.state
        return self.depth == 0 and self.move(Event.RETURN) and before is LoopState.FORWARD
