"""Costs of the kinds of phases that were counted, which kinds' costs follow from these, and which
phases are to be counted next."""

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from mfulab.core.said import Said
from mfulab.flops.counter import Operations
from mfulab.flops.useful import RealTokens
from mfulab.loop.interactive.costs import Kind, PhaseCost, cost_of

# This many kinds that differ only in inner shapes, and cost the same, show the cost of all others
# like them.
ENOUGH_ALIKE = 4
# No more phases than these are counted: each is slow.
MOST_COUNTED = 512
# How often phases are counted in vain for a missing kind: this often in a row, and as often again
# where it is expected.
MOST_TRIES = 16
# The phases of a kind that are counted again, to check that they cost the same.
CHECKED = frozenset(64 * 8**power for power in range(8))


class Filling:
    """Useful FLOPs of equal calls in a row that fill a static cache. They are counted at some
    positions of a run, and interpolated linearly in between. Positions count from 1."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.useful: dict[int, float] = {}
        self._mean = 0.0
        self._mean_of = 0  # number of calls

    def wants(self, position: int) -> bool:
        """True if a call at this position is to be counted: once at each power of two."""
        is_power_of_two = position & (position - 1) == 0
        return bool(self.useful) and is_power_of_two and position not in self.useful

    @property
    def mean(self) -> float:
        """Mean useful FLOPs over all calls so far."""
        count = self.calls.total()
        if self._mean_of != count:
            useful = sum(calls * self._at(position) for position, calls in self.calls.items())
            self._mean = useful / count
            self._mean_of = count
        return self._mean

    def _at(self, position: int) -> float:
        """Useful FLOPs at a position, interpolated between counted ones."""
        counted = sorted(self.useful)
        if len(counted) == 1:
            return self.useful[counted[0]]
        after = bisect.bisect_left(counted, position)
        after = min(max(after, 1), len(counted) - 1)
        first = counted[after - 1]
        last = counted[after]
        low = self.useful[first]
        high = self.useful[last]
        return low + (high - low) * (position - first) / (last - first)


class Fillings:
    """Keeps the filling of each kind of forward pass, and the position of the last pass among equal
    ones in a row."""

    def __init__(self) -> None:
        self._of_entries: defaultdict[Kind, Filling] = defaultdict(Filling)
        self._of_kinds: dict[Kind, Filling] = {}
        self._forward: Kind | None = None
        self._position = 0

    def begin(self, entry: Kind) -> bool:
        """Records a phase that begins as `entry`; True if its position is to be counted."""
        filling = self._of_entries[entry]
        if entry.signature[0] == "forward":
            if entry != self._forward:
                self._position = 0
            self._position += 1
            self._forward = entry
            filling.calls[self._position] += 1
        return filling.wants(self._position)

    def note(self, entry: Kind, kind: Kind, useful: float) -> None:
        """Records the useful FLOPs of a counted phase, if it is the last forward pass."""
        if entry == self._forward:
            filling = self._of_kinds[kind] = self._of_entries[entry]
            filling.useful[self._position] = useful

    def applied(self, kind: Kind, cost: PhaseCost) -> PhaseCost:
        """Cost of a kind with the mean useful FLOPs of its filling, if it has one."""
        if kind not in self._of_kinds:
            return cost
        return replace(cost, useful=min(self._of_kinds[kind].mean, cost.model))


class CountedKinds:
    """Costs of counted kinds; None for a kind of which two counts differ."""

    def __init__(self) -> None:
        self._costs: dict[Kind, PhaseCost | None] = {}
        self._of_sizes: defaultdict[object, list[Kind]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._costs)

    def __contains__(self, kind: Kind) -> bool:
        return kind in self._costs

    def __getitem__(self, kind: Kind) -> PhaseCost | None:
        return self._costs[kind]

    def note(self, kind: Kind, cost: PhaseCost) -> bool:
        """Records a count; False if it differs from one before."""
        if kind not in self._costs:
            self._of_sizes[kind.signature, kind.sizes].append(kind)
        if cost.same_flops(self._costs.setdefault(kind, cost)):
            return True
        self._costs[kind] = None
        return False

    def alike(self, kind: Kind) -> PhaseCost | None:
        """Cost of kinds that differ only in inner shapes (experts' shares of the tokens); None
        unless several were counted and all cost the same."""
        kinds = self._of_sizes.get((kind.signature, kind.sizes), ())
        if len(kinds) < ENOUGH_ALIKE:
            return None
        alike = [self._costs[other] for other in kinds]
        first = alike[0]
        if first is not None and all(map(first.same_flops, alike)):
            return first
        return None


class MissingKinds:
    """Kinds without a cost that turned up where a phase began as a known one. Decides which phases
    are counted for them, and gives each up after some tries."""

    def __init__(self) -> None:
        self._of_entries: dict[Kind, set[Kind]] = {}
        self._tries: Counter[Kind] = Counter()
        # The kind that is expected for an entry and its nth phase; and the n at which each kind
        # turned up last.
        self._expected: dict[tuple[Kind, int], Kind] = {}
        self._turned_up: dict[Kind, int] = {}

    def __contains__(self, entry: Kind) -> bool:
        return entry in self._of_entries

    def pop_expected(self, entry: Kind, number: int) -> Kind | None:
        """Returns the kind that the nth phase of an entry is expected to be, and forgets it. None if
        none is expected."""
        return self._expected.pop((entry, number), None)

    def add(self, entry: Kind, kind: Kind, number: int) -> None:
        """Records that the nth phase of an entry was of this kind. It is expected again after as
        many phases as lie between its last two."""
        if self._tries[kind] < MOST_TRIES:
            self._of_entries.setdefault(entry, set()).add(kind)
        if kind != entry and self._tries[kind] < 2 * MOST_TRIES:
            distance = number - self._turned_up.get(kind, 0)
            self._expected[entry, number + distance] = kind
            self._turned_up[kind] = number
            self._tries[kind] += 1

    def note(self, entry: Kind, kind: Kind) -> None:
        """Records that a phase of an entry was counted, and of which kind it was."""
        missing = self._of_entries.pop(entry, set()) - {kind}
        self._tries.update(missing)
        missing = {other for other in missing if self._tries[other] < MOST_TRIES}
        if missing:
            self._of_entries[entry] = missing


class KnownCosts:
    """Costs of kinds, both by a phase's `entry` and by its final `kind`. `differing` is set once
    two counts of one kind differ, so that neither is its cost."""

    def __init__(self) -> None:
        self._kinds = CountedKinds()
        self._entries = CountedKinds()
        self._missing = MissingKinds()
        self._fillings = Fillings()
        self._begun: Counter[Kind] = Counter()
        self._due: set[Kind] = set()
        self._derived: set[Kind] = set()
        self._counts = 0
        self.differing: Said | None = None

    @property
    def numbers(self) -> tuple[int, int]:
        """Number of kinds that were counted, and of kinds that cost the same as others like
        them."""
        return len(self._kinds), len(self._derived)

    def cost(self, kind: Kind) -> PhaseCost | None:
        """Cost of a kind; None if it was not counted and follows from no others."""
        if kind in self._kinds:
            cost = self._kinds[kind]
        elif cost := self._kinds.alike(kind):
            self._derived.add(kind)
        if cost is None:
            return None
        return self._fillings.applied(kind, cost)

    def has(self, kind: Kind) -> bool:
        """True if a kind was counted, or its cost follows from others."""
        return kind in self._kinds or self._kinds.alike(kind) is not None

    def wants(self, entry: Kind) -> bool:
        """Records a phase that begins as `entry`; True if it is to be counted."""
        self._begun[entry] += 1
        is_due = self._fillings.begin(entry)
        if self._counts >= MOST_COUNTED:
            return False
        is_due = is_due or self._begun[entry] in CHECKED or entry in self._due
        self._due.discard(entry)
        expected = self._missing.pop_expected(entry, self._begun[entry])
        is_expected = expected is not None and expected not in self._kinds
        if is_due or is_expected or entry in self._missing:
            return True
        return entry not in self._entries and self._entries.alike(entry) is None

    def passed(self, entries: Iterable[Kind], steps: int) -> None:
        """Records the phases of steps that were not watched. If one of them was due for a recount,
        the next of its kind is counted again."""
        for entry in entries:
            before = self._begun[entry]
            self._begun[entry] += steps
            if any(before < due <= before + steps for due in CHECKED):
                self._due.add(entry)

    def doubt(self, entry: Kind, kind: Kind) -> None:
        """Records a phase that began as a known kind and turned out to be an unknown one. The next
        phases of that entry are counted, and so is the one at the distance between the last two of
        the unknown kind. Does nothing once no more phases are counted."""
        if self._counts < MOST_COUNTED:
            self._missing.add(entry, kind, self._begun[entry])

    def note(
        self, entry: Kind, kind: Kind, operations: Operations, real: RealTokens | None
    ) -> None:
        """Records the count of a phase."""
        cost = cost_of(operations, real)
        for counted, key in ((self._kinds, kind), (self._entries, entry)):
            if not counted.note(key, cost) and key is kind:
                self.differing = Said("phases_differ", phase=kind.signature[0])
        if real is None and cost.useful is not None:
            self._fillings.note(entry, kind, cost.useful)
        self._counts += 1
        self._missing.note(entry, kind)
