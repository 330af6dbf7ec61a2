"""Trainings of one script: which optimiser's step ends a step, how long each training took, and
what is shown of it."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from mfulab.core.answer import Answer, unanswered
from mfulab.core.files import write_text
from mfulab.core.language import Texts
from mfulab.core.parts import Record
from mfulab.core.said import Said, as_json, said_by
from mfulab.device import is_gpu
from mfulab.device.compute import has_ranks
from mfulab.device.samplers.reading import Reading
from mfulab.loop.interactive.hooks import apart
from mfulab.loop.interactive.split import PHASES, Split
from mfulab.loop.interactive.structure import Modules
from mfulab.loop.interactive.wanted import Wanted, not_measured_row, say_not_measured, say_of_script
from mfulab.mfu.account import Judged
from mfulab.mfu.utilization import ratio

if TYPE_CHECKING:
    from mfulab.loop.interactive.measure import Measurement

# Steps of others that an optimiser which stepped once may wait for, as a generator for critics.
UNKNOWN_GAP = 8
# Ladders of one script, and how many of them are shown before it ends.
MOST_SHOWN = 3
SHOWN_AT_ONCE = 2
# A training that took this share of the time of all has a ladder of its own.
LONG_SHARE = 0.1
# Windows of equal trainings that ended before they were full; further ones are only timed.
MOST_WINDOWS = 8


@dataclass
class Stepped:
    """Steps of an optimiser. `rank` is the number of steps it would have made had it begun with the
    others. `last` is the number of its last step among all optimisers' steps, `gap` the most steps
    of others between two of its own."""

    rank: int
    last: int
    steps: int = 0
    gap: int = 0


class Optimizers:
    """Steps of all optimisers, in order; keeps none of them alive."""

    def __init__(self) -> None:
        self._stepped: WeakKeyDictionary[torch.optim.Optimizer, Stepped] = WeakKeyDictionary()
        self._families: set[Any] = set()
        self._number = 0

    def note(self, optimizer: torch.optim.Optimizer) -> bool:
        """Records a step; True if no optimiser of this type with equally many parameters stepped
        before."""
        self._number += 1
        stepped = self._stepped.get(optimizer)
        is_new = False
        if stepped is None:
            rank = max((other.rank for other in self._stepped.values()), default=1)
            stepped = self._stepped[optimizer] = Stepped(rank - 1, self._number)
            family = type(optimizer), sum(len(group["params"]) for group in optimizer.param_groups)
            is_new = family not in self._families
            self._families.add(family)
        stepped.gap = max(stepped.gap, self._number - stepped.last - 1)
        stepped.last = self._number
        stepped.rank += 1
        stepped.steps += 1
        return is_new

    def of(self, optimizer: object) -> Stepped | None:
        """Steps of an optimiser; None if it has not stepped."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            return None
        return self._stepped.get(optimizer)

    def has_retired(self, optimizer: object) -> bool:
        """True if others have stepped for longer without it than they ever did between two of its
        steps."""
        stepped = self.of(optimizer)
        return stepped is None or self._is_past(stepped)

    def is_rarest(self, optimizer: torch.optim.Optimizer, fewest: int) -> bool:
        """True if an optimiser has stepped least often of those that still step, and at least
        `fewest` times."""
        stepped = self._stepped[optimizer]
        ranks = [other.rank for other in self._stepped.values() if not self._is_past(other)]
        return stepped.rank == min(ranks) and stepped.steps >= fewest

    def _is_past(self, stepped: Stepped) -> bool:
        gap = stepped.gap if stepped.steps > 1 else UNKNOWN_GAP
        return self._number - stepped.last > 2 * gap + 1

    @property
    def most_steps(self) -> int:
        """Number of steps of the optimiser that stepped most often; 0 if none stepped."""
        return max((stepped.steps for stepped in self._stepped.values()), default=0)


@dataclass(frozen=True)
class WindowResult:
    """Result of a window that a ladder shows, without its models."""

    row: Record
    readings: dict[str, Reading]
    verdict: Judged | None
    answer: Answer
    phases: dict[str, Record]
    device: torch.device
    split_steps: int

    @classmethod
    def of(cls, window: "Measurement", split: Split | None) -> "WindowResult":
        """Copies a closed window, and the phases of the steps after it."""
        row = dict(window.row)
        split_steps = 0
        if split is not None:
            row |= split.row()
            split_steps = len(split.steps) - 1
        return cls(
            row=row,
            readings=window.readings,
            verdict=window.verdict,
            answer=window.account.mfu() if window.account else unanswered("%", Said("untimed")),
            phases=window.phases,
            device=window.device,
            split_steps=split_steps,
        )

    @property
    def slowed_s(self) -> float:
        """Seconds by which the counter and hooks lengthened the mean step."""
        timed_s = ratio(self.row.get("window_s"), self.row.get("steps")) or 0.0
        return max(0.0, (self.row.get("mean_of_all_s") or timed_s) - timed_s)


@dataclass
class Training:
    """Equal trainings: the same models and the same optimiser, once or several times. `result` is
    that of the longest window; `is_full` is True once a window had as many steps as wanted."""

    models: tuple[str, ...]
    ends: str
    of_forwards: bool
    seconds: float = 0.0
    steps: int = 0
    windows: int = 0
    result: WindowResult | None = None
    result_steps: int = 0
    is_full: bool = False
    is_shown: bool = False

    @property
    def is_known(self) -> bool:
        """True if no further window of it is needed."""
        return self.is_full or self.windows >= MOST_WINDOWS

    def keep(self, result: WindowResult, steps: int, is_full: bool) -> None:
        """Keeps the result of a window if it has more steps than the one before."""
        self.windows += 1
        if steps > self.result_steps:
            self.result = result
            self.result_steps = steps
        self.is_full = self.is_full or is_full


@dataclass
class Trainings:
    """All trainings of a script, by models and optimiser; shows them and writes their row."""

    wanted: Wanted
    by_key: dict[Any, Training] = field(default_factory=dict)
    began_s: float = field(default_factory=time.perf_counter)
    rank: int = field(default_factory=lambda: int(os.environ.get("RANK", "0")))
    ranks: int = field(default_factory=lambda: int(os.environ.get("WORLD_SIZE", "1")))

    def _note_ranks(self) -> None:
        """Records the rank now: at the script's end its process group may be gone."""
        if has_ranks():
            self.rank = dist.get_rank()
            self.ranks = dist.get_world_size()

    def find(self, models: Modules, names: tuple[str, ...], ends: object) -> Training:
        """Returns the training of these models that ends its steps with `ends`, new or known."""
        self._note_ranks()
        elements = 0
        for model in models:
            elements += sum(weight.numel() for weight in model.parameters())
        of_forwards = not isinstance(ends, torch.optim.Optimizer)
        name = names[0] if of_forwards else type(ends).__name__
        key = names, name, elements
        return self.by_key.setdefault(key, Training(names, name, of_forwards))

    def show_at_once(self, training: Training) -> None:
        """Shows a training whose window is full, unless the remaining ladders are reserved for the
        end."""
        shown = sum(other.is_shown for other in self.by_key.values())
        if shown < SHOWN_AT_ONCE and not training.is_shown:
            self._show(training)
        self.write()

    @property
    def _longest_first(self) -> list[Training]:
        return sorted(self.by_key.values(), key=lambda training: training.seconds, reverse=True)

    @property
    def _measured(self) -> list[Training]:
        """Trainings of which something was measured, the longest first."""
        return [training for training in self._longest_first if training.result is not None]

    def end(self) -> bool:
        """Shows the longest trainings that are not shown yet; False if nothing was measured."""
        measured = self._measured
        if not measured:
            return False
        long_s = LONG_SHARE * sum(training.seconds for training in self.by_key.values())
        left = MOST_SHOWN - sum(training.is_shown for training in measured)
        for training in measured:
            is_long = training.is_full and training.seconds >= long_s
            is_due = is_long or training is measured[0]
            if left > 0 and is_due and not training.is_shown:
                self._show(training)
                left -= 1
        if len(self.by_key) > 1 and not self.rank:
            self._summarise()
        self.write()
        return True

    @property
    def _shares(self) -> dict[int, float]:
        whole_s = time.perf_counter() - self.began_s
        return {id(training): 100 * training.seconds / whole_s for training in self.by_key.values()}

    def _summarise(self) -> None:
        from mfulab.core.terminal import Terminal

        text = Texts(self.wanted.language, "script")
        shares = self._shares
        longest = self._longest_first
        parts = [
            text(
                "inference" if training.of_forwards else "training",
                models=", ".join(dict.fromkeys(training.models)),
                ends=training.ends,
                steps=training.steps,
                share=f"{shares[id(training)]:.1f}",
            )
            for training in longest[:MOST_SHOWN]
        ]
        others = longest[MOST_SHOWN:]
        if others:
            share = sum(shares[id(training)] for training in others)
            parts.append(text("other_trainings", count=len(others), share=f"{share:.1f}"))
        Terminal(stderr=True).print(text("trainings", parts=" · ".join(parts)))

    def _show(self, training: Training) -> None:
        training.is_shown = True
        result = training.result
        if result is None or self.rank:
            return
        text = Texts(self.wanted.language, "script")
        key = "forward_step" if training.of_forwards else "optimizer_step"
        how = text(key, ends=training.ends)
        parts = []
        for name in PHASES:
            ms = result.row.get(f"{name}_ms")
            if ms is not None:
                parts.append(text(name, ms=f"{ms:.3f}"))
        with apart(result.device):
            from mfulab.core.terminal import Terminal
            from mfulab.loop.interactive.show import show

            console = Terminal(stderr=True)
            models = ", ".join(dict.fromkeys(training.models)) or "—"
            console.print(text("models", models=models, how=how))
            show(result, console, self.wanted.language)
            if parts:
                clock = text("events" if is_gpu(result.device) else "host")
                count = result.split_steps
                console.print(text("phases", parts=" · ".join(parts), clock=clock, count=count))

    def write(self) -> None:
        """Writes the row of the longest training that was measured, and the time of each."""
        measured = self._measured
        if not measured:
            return
        longest = measured[0]
        shares = self._shares
        window = longest.result
        assert window is not None
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
                    "models": list(training.models),
                    "step_of": training.ends,
                    "steps": training.steps,
                    "seconds": training.seconds,
                    "share_percent": shares[id(training)],
                    "measured_steps": training.result_steps,
                    "flops": training.result.row.get("flops") if training.result else None,
                }
                for training in self.by_key.values()
            ],
        }
        self._write(fields)

    def say_not_measured(self, why: Said) -> None:
        """Reports in one sentence why nothing is measured, and writes it as the row of this
        rank."""
        self._note_ranks()
        say_not_measured(self.wanted, why)
        self._write(not_measured_row(why))

    def _write(self, fields: Mapping[str, object]) -> None:
        """Writes the JSON of this rank, if it is asked for; reports in one sentence why it
        cannot."""
        name = self.wanted.name
        file = self.wanted.own_file(self.rank, self.ranks > 1)
        if file is None:
            return
        row = {"script": name, "rank": self.rank, "ranks": self.ranks, **fields}
        try:
            write_text(file, json.dumps(row, ensure_ascii=False, default=str) + "\n")
        except Exception as error:
            say_of_script(self.wanted, "row_not_written", said_by(error))
