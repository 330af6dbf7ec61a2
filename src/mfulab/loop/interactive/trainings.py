"""Trainings of one script: which optimiser's step ends a step, what each training took, and what
is told of it."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from mfulab.core.answer import Answer, unanswered
from mfulab.core.files import write_text
from mfulab.core.language import Texts
from mfulab.core.parts import Record
from mfulab.core.printing import say
from mfulab.core.said import Said, as_json
from mfulab.device import is_gpu
from mfulab.device.samplers.reading import Reading
from mfulab.loop.interactive.hooks import apart
from mfulab.loop.interactive.wanted import Wanted, tell_nothing, without_row
from mfulab.mfu.account import Judged
from mfulab.mfu.utilization import ratio

if TYPE_CHECKING:
    from mfulab.loop.interactive.measure import Measurement

# Steps of others that an optimiser which stepped once may wait for, as a generator for its critics.
UNKNOWN_GAP = 8
# Ladders of one script, and how many of them are shown before it ends.
MOST_SHOWN = 3
SHOWN_AT_ONCE = 2
# A training of this share of all their time is long enough for a ladder of its own.
LONG_SHARE = 0.1
# Windows of trainings alike that ended before they were full; of further ones only time is taken.
MOST_WINDOWS = 8


@dataclass
class Stepped:
    """Steps of an optimiser. `rank` is what it would have stepped had it begun with the others;
    `last` is the number of its last step among all, `gap` the most steps of others between two."""

    rank: int
    last: int
    first_s: float
    last_s: float = 0.0
    steps: int = 0
    gap: int = 0


class Optimizers:
    """Steps of all optimisers in the order that they come in; holds none of them alive."""

    def __init__(self) -> None:
        self._stepped: WeakKeyDictionary[torch.optim.Optimizer, Stepped] = WeakKeyDictionary()
        self._families: set[Any] = set()
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._stepped)

    def note(self, optimizer: torch.optim.Optimizer) -> bool:
        """Notes a step; True if no optimiser of this type, for as many parameters, stepped
        before."""
        now = time.perf_counter()
        self._number += 1
        one = self._stepped.get(optimizer)
        is_new = False
        if one is None:
            rank = max((other.rank for other in self._stepped.values()), default=1)
            one = self._stepped[optimizer] = Stepped(rank - 1, self._number, now)
            family = type(optimizer), sum(len(group["params"]) for group in optimizer.param_groups)
            is_new = family not in self._families
            self._families.add(family)
        one.gap = max(one.gap, self._number - one.last - 1)
        one.last = self._number
        one.last_s = now
        one.rank += 1
        one.steps += 1
        return is_new

    def of(self, optimizer: object) -> Stepped | None:
        """Steps of an optimiser that lives and has stepped."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            return None
        return self._stepped.get(optimizer)

    def has_retired(self, optimizer: object) -> bool:
        """Says whether others have stepped for longer without it than they ever did between two of
        its steps."""
        one = self.of(optimizer)
        return one is None or self._is_past(one)

    def is_rarest(self, optimizer: torch.optim.Optimizer, fewest: int) -> bool:
        """Says whether an optimiser has stepped least often of those that still step, and often
        enough."""
        one = self._stepped[optimizer]
        ranks = []
        for other in self._stepped.values():
            if not self._is_past(other):
                ranks.append(other.rank)
        return one.rank == min(ranks) and one.steps >= fewest

    def _is_past(self, one: Stepped) -> bool:
        gap = one.gap if one.steps > 1 else UNKNOWN_GAP
        return self._number - one.last > 2 * gap + 1

    @property
    def most_steps(self) -> int:
        """Steps of the optimiser that stepped most often; 0 without one."""
        return max((one.steps for one in self._stepped.values()), default=0)


class Divided(Protocol):
    """Steps that were divided into phases: their names, the running step's too."""

    steps: list[list[str]]

    def row(self) -> dict[str, float | None]:
        """Mean ms of each phase."""
        ...


@dataclass(frozen=True)
class Told:
    """Facts that a ladder shows of a window, without its models."""

    row: Record
    readings: dict[str, Reading]
    verdict: Judged | None
    answer: Answer
    phases: dict[str, Record]
    device: torch.device
    split_steps: int

    @classmethod
    def of(cls, window: "Measurement", split: Divided | None) -> "Told":
        """Copies a window that is closed, and the phases of the steps after it."""
        return cls(
            row=window.row | (split.row() if split else {}),
            readings=window.readings,
            verdict=window.verdict,
            answer=window.account.mfu() if window.account else unanswered("%", Said("untimed")),
            phases=window.phases,
            device=window.device,
            split_steps=len(split.steps) - 1 if split else 0,
        )

    @property
    def slowed_s(self) -> float:
        """Seconds by which the mean step was longer under the counter and hooks than without."""
        timed_s = ratio(self.row.get("window_s"), self.row.get("steps")) or 0.0
        return max(0.0, (self.row.get("mean_of_all_s") or timed_s) - timed_s)


@dataclass
class Training:
    """Trainings alike: the same models and the same optimiser, once or several times. `told` is of
    the longest window; it is full if as many steps as wanted are in it."""

    models: tuple[str, ...]
    ends: str
    of_forwards: bool
    seconds: float = 0.0
    steps: int = 0
    windows: int = 0
    told: Told | None = None
    told_steps: int = 0
    is_full: bool = False
    is_shown: bool = False

    @property
    def is_known(self) -> bool:
        """True if no further window of it is needed."""
        return self.is_full or self.windows >= MOST_WINDOWS

    def keep(self, told: Told, steps: int, is_full: bool) -> None:
        """Keeps what a window told, if it is longer than the one before."""
        self.windows += 1
        if steps > self.told_steps:
            self.told, self.told_steps = told, steps
        self.is_full = self.is_full or is_full


@dataclass
class Trainings:
    """All trainings of a script by what they are, and how they are told."""

    wanted: Wanted
    by_key: dict[Any, Training] = field(default_factory=dict)
    began_s: float = field(default_factory=time.perf_counter)
    rank: int = field(default_factory=lambda: int(os.environ.get("RANK", "0")))
    ranks: int = field(default_factory=lambda: int(os.environ.get("WORLD_SIZE", "1")))

    def _note_ranks(self) -> None:
        """Keeps the rank: at the script's end its process group may be gone."""
        if dist.is_available() and dist.is_initialized():
            self.rank = dist.get_rank()
            self.ranks = dist.get_world_size()

    def find(
        self, models: Sequence[torch.nn.Module], names: tuple[str, ...], ends: object
    ) -> Training:
        """Gives the training of these models that ends its steps so."""
        self._note_ranks()
        elements = sum(weight.numel() for model in models for weight in model.parameters())
        of_forwards = not isinstance(ends, torch.optim.Optimizer)
        name = names[0] if of_forwards else type(ends).__name__
        key = names, name, elements
        return self.by_key.setdefault(key, Training(names, name, of_forwards))

    def show_at_once(self, training: Training) -> None:
        """Shows a training whose window is full, unless the last ladders are kept for the end."""
        shown = []
        for one in self.by_key.values():
            if one.is_shown:
                shown.append(one)
        if len(shown) < SHOWN_AT_ONCE and not training.is_shown:
            self._show(training)
        self.write()

    def end(self) -> bool:
        """Shows the longest trainings that are not shown yet; False if there is none to show."""
        measured = [one for one in self.by_key.values() if one.told is not None]
        if not measured:
            return False
        all_s = sum(one.seconds for one in self.by_key.values())
        measured.sort(key=lambda one: one.seconds, reverse=True)
        left = MOST_SHOWN - sum(one.is_shown for one in measured)
        for one in measured:
            is_long = one is measured[0] or (one.is_full and one.seconds >= LONG_SHARE * all_s)
            if left > 0 and is_long and not one.is_shown:
                self._show(one)
                left -= 1
        if len(self.by_key) > 1 and not self.rank:
            self._summarise()
        self.write()
        return True

    @property
    def _shares(self) -> dict[int, float]:
        whole_s = time.perf_counter() - self.began_s
        return {id(one): 100 * one.seconds / whole_s for one in self.by_key.values()}

    def _summarise(self) -> None:
        from mfulab.core.terminal import Terminal

        text = Texts(self.wanted.language, "script")
        shares = self._shares
        longest = sorted(self.by_key.values(), key=lambda one: one.seconds, reverse=True)
        parts = [
            text(
                "inference" if one.of_forwards else "training",
                models=", ".join(dict.fromkeys(one.models)),
                ends=one.ends,
                steps=one.steps,
                share=f"{shares[id(one)]:.1f}",
            )
            for one in longest[:MOST_SHOWN]
        ]
        others = longest[MOST_SHOWN:]
        if others:
            share = sum(shares[id(one)] for one in others)
            parts.append(text("other_trainings", count=len(others), share=f"{share:.1f}"))
        Terminal(stderr=True).print(text("trainings", parts=" · ".join(parts)), markup=False)

    def _show(self, training: Training) -> None:
        training.is_shown = True
        told = training.told
        if told is None or self.rank:
            return
        text = Texts(self.wanted.language, "script")
        key = "forward_step" if training.of_forwards else "optimizer_step"
        how = text(key, ends=training.ends)
        times = {name: told.row.get(f"{name}_ms") for name in PARTS}
        parts = []
        for name, ms in times.items():
            if ms is not None:
                parts.append(text(name, ms=f"{ms:.3f}"))
        with apart(told.device):
            from mfulab.core.terminal import Terminal
            from mfulab.loop.interactive.show import show

            console = Terminal(stderr=True)
            models = ", ".join(dict.fromkeys(training.models)) or "—"
            console.print(text("models", models=models, how=how), markup=False)
            show(told, console, self.wanted.language)
            if parts:
                clock = text("events" if is_gpu(told.device) else "host")
                count = told.split_steps
                console.print(text("phases", parts=" · ".join(parts), clock=clock, count=count))

    def write(self) -> None:
        """Writes the row of the longest training that was measured, and what each took."""
        measured = [one for one in self.by_key.values() if one.told is not None]
        if not measured:
            return
        longest = max(measured, key=lambda one: one.seconds)
        assert longest.told is not None
        shares = self._shares
        window = longest.told
        fields = {
            "models": list(longest.models),
            "step_of": longest.ends,
            "verdict": window.verdict and window.verdict.cause,
            "answer": asdict(window.answer),
            **window.row,
            "reasons": {
                name: as_json(reading.reason)
                for name, reading in window.readings.items()
                if reading.reason
            },
            "trainings": [
                {
                    "models": list(one.models),
                    "step_of": one.ends,
                    "steps": one.steps,
                    "seconds": one.seconds,
                    "share_percent": shares[id(one)],
                    "measured_steps": one.told_steps,
                    "flops": one.told.row.get("flops") if one.told else None,
                }
                for one in self.by_key.values()
            ],
        }
        self._write(fields)

    def tell_nothing(self, why: str) -> None:
        """Says in one sentence why nothing is measured, and writes it as the row of this rank."""
        self._note_ranks()
        tell_nothing(self.wanted, why)
        self._write(without_row(why))

    def _write(self, fields: Mapping[str, object]) -> None:
        """Writes the JSON of this rank if it is asked for; one sentence says why it cannot."""
        name = self.wanted.name
        own = self.wanted.own_file(self.rank, self.ranks > 1)
        if own is None:
            return
        whole = {"script": name, "rank": self.rank, "ranks": self.ranks, **fields}
        try:
            write_text(own, json.dumps(whole, ensure_ascii=False, default=str) + "\n")
        except Exception as error:
            say(f"mfulab measure {name}: the row is not written: {error}", file=sys.stderr)


PARTS = ("loader", "copy", "forward", "backward", "optimiser", "other")
