"""Parts a file that several processes wrote, as merged ranks do, into a recording of each: correlations, external ids,
devices and steps are numbered by each process anew."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mfulab.core.said import Said
from mfulab.tracing.recording import Indices, Recording

_NUMBER = re.compile(r"\s*\d+\s*$")


def split(recording: Recording, threads: Sequence[Any], places: Sequence[Any]) -> list[Recording]:
    """A recording of each process that launched work, or marked steps; the whole where there is but one.

    `threads` are the process of each thread, `places` that of each device, as the file names them: in a trace of torch
    it may be the device's number.
    """
    host, launches = recording.host, recording.launches
    names = _names([*dict.fromkeys(threads)], [*dict.fromkeys(places)])
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names[one] for one in threads))}
    of_thread = np.array([numbers[names[one]] for one in threads], np.int64)
    marks = recording.named(lambda name: name.startswith("ProfilerStep#"))[host.name] & host.annotation
    owners = np.unique(of_thread[launches.thread if len(launches) else host.thread[marks]]).tolist()
    if len(owners) < 2:
        return [recording]
    of_place = [numbers.get(names[one], -1) for one in places]
    of_place = _assigned(recording, of_thread[launches.thread], of_place, owners)
    labels, found = {number: str(name) for name, number in numbers.items()}, []
    said = [int(told[0]) if len(told := re.findall(r"\d+", labels[one])) == 1 else -1 for one in owners]
    ranks = said if len(set(said)) == len(said) and max(said) < len(said) else list(range(len(owners)))
    of_thread = np.where(np.isin(of_thread, owners), of_thread, owners[0])
    of_activity = np.array(of_place, np.int64)[recording.activities.device]
    for owner, rank in zip(owners, ranks, strict=True):
        masks = of_activity == owner, of_thread[host.thread] == owner, of_thread[launches.thread] == owner
        part = recording.chosen(*masks)
        held = [one for one in recording.collectives if of_place[one[2]] == owner]
        note = Said("one_of_processes", {"process": labels[owner].strip(), "count": len(owners)})
        about = {"distributedInfo": {"rank": rank, "world_size": len(owners)}}
        metadata, notes = recording.metadata | about, [*recording.notes, note]
        found.append(replace(part, metadata=metadata, collectives=held, notes=notes, ranks=len(owners)))
    return found


def _names(threads: list[Any], places: list[Any]) -> dict[Any, Any]:
    """The name of each process: of a text the words before a number, where devices have other numbers. A merged file
    calls rank 1's process "[TP01] 4242" and its device "[TP01] 1"."""
    known = set(threads)
    if all(one in known for one in places):
        return {one: one for one in threads}
    return {one: (_NUMBER.sub("", one) or one) if isinstance(one, str) else one for one in (*threads, *places)}


def _assigned(recording: Recording, of_launch: Indices, of_place: list[int], owners: list[int]) -> list[int]:
    """The process of each place: as it is named, else whose launches precede most of what was executed there; of equal
    ones the first that has no place yet."""
    activities, launches = recording.activities, recording.launches
    taken = set(of_place)
    for place, named in enumerate(of_place):
        if named in owners:
            continue
        mine, scores = np.flatnonzero(activities.device == place), []
        for owner in owners:
            chosen = np.flatnonzero(of_launch == owner)
            begins = dict(zip(launches.correlation[chosen].tolist(), launches.begin[chosen].tolist(), strict=True))
            pairs = zip(activities.correlation[mine].tolist(), activities.begin[mine].tolist(), strict=True)
            scores.append(sum(begins.get(number, begin + 1) <= begin for number, begin in pairs))
        best = max(range(len(owners)), key=lambda one: (scores[one], owners[one] not in taken, -one))
        of_place[place] = owners[best]
        taken.add(owners[best])
    return of_place
