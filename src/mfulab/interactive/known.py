"""Costs of kinds of phases: which were counted, which follow from these, and which to count next."""

from mfulab.flops.counter import Operations
from mfulab.flops.useful import RealTokens
from mfulab.interactive.kinds import Cost, Kind, alike_cost, cost_of, derive

# More phases than these are not counted: each is a slow one.
MOST_COUNTED = 128
# How often a phase is counted in vain until what is missing turns up.
MOST_TRIES = 16
# A kind is counted again at these of its phases: they must cost the same.
CHECKED = frozenset(64 * 8**power for power in range(8))


class KnownCosts:
    """Costs of kinds, by what a phase began as (`entry`) and by what it turned out to be.

    Attributes:
        differing: a kind whose two counts differ, so that neither is its cost; empty without one.
        derived: number of kinds whose cost followed from others.
    """

    def __init__(self) -> None:
        self._costs: dict[Kind, Cost | None] = {}
        self._entries: dict[Kind, Cost | None] = {}
        self._begun: dict[Kind, int] = {}
        self._missing: dict[Kind, set[Kind]] = {}
        self._tries: dict[Kind, int] = {}
        self._irregular: set[tuple[object, ...]] = set()
        self._largest: dict[tuple[object, ...], int] = {}
        self._found: dict[tuple[Kind, int], Cost | None] = {}
        self._counts = 0
        self.differing = ""

    @property
    def counted(self) -> int:
        """Number of kinds that were counted."""
        return len(self._costs)

    @property
    def derived(self) -> int:
        """Number of kinds whose cost follows from others."""
        return sum(level == 0 and cost is not None for (_, level), cost in self._found.items())

    def cost(self, kind: Kind) -> Cost | None:
        """Cost of a kind; None if it was neither counted nor follows from others."""
        return self._costs[kind] if kind in self._costs else self._follows(kind, 0)

    def has(self, kind: Kind) -> bool:
        """Says whether a kind was counted, or follows from others."""
        return kind in self._costs or self._follows(kind, 0) is not None

    def wants(self, entry: Kind) -> tuple[bool, bool]:
        """Says whether to count a phase that begins so; if not, whether it lies beyond all counted ones as yet."""
        begun = self._begun[entry] = self._begun.get(entry, 0) + 1
        if self._counts >= MOST_COUNTED:
            return False, False
        if entry in self._missing or begun in CHECKED:
            return True, False
        if entry in self._entries or (entry.words not in self._irregular and self._follows(entry, 1)):
            return False, False
        if entry.words in self._irregular or not self._follows(entry, 2):
            return True, False
        size = sum(entry.sizes)
        largest = self._largest[entry.words] = max(size, self._largest.get(entry.words, 0))
        wait = begun == 1 or size < largest
        return not wait, wait

    def doubt(self, entry: Kind, kind: Kind) -> None:
        """Notes a phase that began as a known one and was of an unknown kind: such are counted until it is found."""
        if entry not in self._entries and kind != entry:
            self._irregular.add(entry.words)
        elif self._tries.get(kind, 0) < MOST_TRIES:
            self._missing.setdefault(entry, set()).add(kind)

    def note(self, entry: Kind, kind: Kind, operations: Operations, real: RealTokens | None) -> None:
        """Notes a count."""
        cost = cost_of(operations, real)
        if not alike_cost(self._costs.setdefault(kind, cost), cost):
            self._costs[kind] = None
            self.differing = f"two equal {kind.words[0]} phases cost differently: their FLOPs depend on data"
        if not alike_cost(self._entries.setdefault(entry, cost), cost):
            self._entries[entry] = None
        self._counts += 1
        self._found.clear()
        missing = self._missing.get(entry, set()) - {kind}
        for other in missing:
            self._tries[other] = self._tries.get(other, 0) + 1
        missing = {other for other in missing if self._tries[other] < MOST_TRIES}
        if missing:
            self._missing[entry] = missing
        else:
            self._missing.pop(entry, None)

    def _follows(self, kind: Kind, level: int) -> Cost | None:
        """Cost from others: 0 by what ran, 1 by what phases began as, 2 also a little beyond these."""
        if (kind, level) not in self._found:
            known = self._entries if level else self._costs
            self._found[kind, level] = derive(known, kind, outside=level == 2)
        return self._found[kind, level]
