"""Merges results folders of several machines, or archives of them, into one. Checks every row and
overwrites nothing."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from mfulab.core import files
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, is_inside, opened, read_csv, read_json, remove
from mfulab.core.parts import Record, leave_out
from mfulab.core.printing import say
from mfulab.core.rows import impossible
from mfulab.core.said import Said, of_source, said_by
from mfulab.core.terminal_language import in_words
from mfulab.device.identity import slug
from mfulab.lab.planning import store
from mfulab.lab.planning.identity import identity
from mfulab.lab.tables.columns import CellError
from mfulab.lab.tables.records import first_fault
from mfulab.measurements import manifest
from mfulab.measurements.registry import MEASUREMENTS, NO_MACHINE

COLLECTED = "+collected"
RESULTS = Path("results")  # begins each folder in a plan
PACKED = ("config.json", "row.csv", "samples.csv", "operators.csv", "kernels.csv")
# folder to unpack into; what a killed process leaves in it is removed at the next start
UNPACKED = ".unpacked"
DEEPEST = 6  # parts of a path in an archive: FOLDER/results/HARDWARE/STEP/RUN/FILE
OF = "--"  # between the names of a device and its participant
LONGEST_NAME = 40  # letters of a participant's name
# Columns that differ between equal results.
VOLATILE = {"commit", "started_at", "process_s", "measured_s"}
LARGEST = 16 << 30  # bytes of all members of an archive together, and of all copied files
LARGEST_RUN = 2 << 30  # bytes of one run's files; a trace of minutes is the largest
MOST_FILES = 1000  # of one run
MOST_MEMBERS = 40_000  # members of an archive; reading that many takes about 20 CPU seconds
READ_AT_ONCE = 1 << 20  # bytes; a header that claims more is invalid
ContentOf = Callable[[], IO[bytes] | None]  # opens a member
OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7z": lzma.open,
}
BROKEN: tuple[type[Exception], ...] = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    OverflowError,
    UnreadableError,
)


@dataclass
class Merged:
    """Outcome of a merge: runs copied, runs already present, and problems."""

    copied: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    problems: list[Said] = field(default_factory=list)
    copied_bytes: int = 0


def collect(sources: Sequence[Path], results: Path, in_class: bool = False) -> Merged:
    """Copies runs and plans of results folders, projects or archives into `results`; runs already
    there stay. If `in_class`, each source is a folder of participants' results. Their machines are
    named `DEVICE--PARTICIPANT`, and a participant without results is a problem. Otherwise a source
    without results raises ConfigurationError, before anything is copied."""
    merged = Merged()
    participants = list[tuple[Path, str]]()
    if in_class:
        participants = list(_participants(sources))
    else:
        for source in sources:
            if not source.is_file():
                _results_of(source, source)
    store.check_writable(results)
    store.take(results)
    with unpacking_room(results / UNPACKED) as room:
        if not in_class:
            folders = []
            for number, source in enumerate(sources):
                folders.append(_results_of(source, room / str(number)))
            for folder in folders:
                _merge(folder, "", results, merged)
        for number, (source, participant) in enumerate(participants):
            try:
                _merge(_results_of(source, room / str(number)), participant, results, merged)
            except ConfigurationError as error:
                merged.problems.append(said_by(error))
            remove(room / str(number))
    return merged


def _merge(folder: Path, participant: str, results: Path, merged: Merged) -> None:
    """Merges the runs and plans of one results folder."""
    for step, run in _runs(folder):
        if not is_inside(run, folder):
            outside = Said("link_out_of", folder=str(folder))
            merged.problems.append(not_copied(run, outside))
            continue
        ours = results / _renamed(run.relative_to(folder), participant)
        try:
            _merge_run(step, run, ours, merged)
        except (FileNotFoundError, ValueError) as error:
            merged.problems.append(not_copied(run, first_fault(error)))
    for plan in sorted(folder.glob("*/plan/*.json")):
        ours = results / _renamed(plan.relative_to(folder), participant)
        _merge_plan(plan, ours, merged, participant)


def not_copied(run: Path, why: Said) -> Said:
    """Message that a run was not copied, with the reason."""
    return Said("not_copied", why=of_source(str(run), why))


def _participants(folders: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yields (path, name) for the results of each participant. Raises ConfigurationError if two
    have the same name."""
    folder_of: dict[str, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigurationError(of_source(f"--class {folder}", Said("give_class_folder")))
        for path in sorted(folder.iterdir()):
            name = slug(path.name.partition(".")[0])[:LONGEST_NAME]
            if folder_of.setdefault(name, path) is not path:
                raise ConfigurationError(
                    Said(
                        "both_of_one_participant",
                        first=str(path),
                        second=str(folder_of[name]),
                        name=name,
                    )
                )
            yield path, name


def _renamed(path: Path, participant: str) -> Path:
    """A path in a results folder, with the participant added to the machine's name."""
    machine, *parts = path.parts
    if participant and machine not in NO_MACHINE:
        machine = f"{machine}{OF}{participant}"
    return Path(machine, *parts)


def _results_of(source: Path, room: Path) -> Path:
    """Finds the results folder of a source. An archive is unpacked into the new folder `room`
    first. Raises ConfigurationError if there are no results."""
    folder = source
    if source.is_file():
        unpack(source, room)
        folder = room
        inner = [path for path in room.iterdir() if path.is_dir()]
        if len(inner) == 1 and not any(_runs(room)):
            folder = inner[0]
    if (folder / "results").is_dir():
        folder = folder / "results"
    if not any(_runs(folder)):
        looked_for = "<hardware>/<measurement>/<run>/config.json"
        raise ConfigurationError(Said("no_results_here", folder=str(source), looked_for=looked_for))
    return folder


def _runs(results: Path) -> Iterator[tuple[str, Path]]:
    """Yields (measurement, folder) of each run in a results folder."""
    for measurement in MEASUREMENTS.values():
        folder = f"*/{measurement.step}" if measurement.on_device else measurement.step
        for config in sorted(results.glob(f"{folder}/*/config.json")):
            if not measurement.on_device or config.relative_to(results).parts[0] not in NO_MACHINE:
                yield measurement.step, config.parent


def _merge_run(step: str, theirs: Path, ours: Path, merged: Merged) -> None:
    """Copies a run unless it is here already; a different result of the same run is a problem."""
    if not (theirs / "row.csv").exists():
        return  # planned there, not measured
    problem = _why_bad(step, theirs) or _why_large(theirs, LARGEST - merged.copied_bytes)
    if problem:
        merged.problems.append(not_copied(theirs, problem))
    elif not (ours / "row.csv").exists() or not store.is_complete(ours / "row.csv"):
        hardware = ours.parents[1].name if MEASUREMENTS[step].on_device else ""
        _copy(theirs, ours, hardware)
        merged.copied.append(str(ours))
        merged.copied_bytes += sum(path.stat().st_size for path in ours.iterdir())
    elif _comparable(theirs) == _comparable(ours):
        merged.present.append(str(ours))
    else:
        merged.problems.append(Said("another_result", theirs=str(theirs), ours=str(ours)))


def _why_bad(step: str, run: Path) -> Said | None:
    """Reason not to copy a run: its row is truncated, does not fit its columns, or belongs to
    another run. None if it is fine."""
    if not store.is_complete(run / "row.csv"):
        return Said("row_incomplete")
    row = read_csv(run / "row.csv")[0]
    measurement = MEASUREMENTS[step]
    hardware = ""
    if measurement.on_device:
        hardware = run.parents[1].name
    if (row.get("run"), row.get("hardware")) != (run.name, hardware):
        return Said("row_of_another", run=row.get("run"), hardware=row.get("hardware"))
    try:
        measurement.config.model_validate(read_json(run / "config.json"))
        filled = {}
        for key, value in row.items():
            if value:
                filled[key] = value
        row_problem = impossible(measurement.row.model_validate(filled), datetime.now(UTC))
    except (FileNotFoundError, ValueError) as error:
        return first_fault(error)
    for path in sorted(run.iterdir()):
        if path.is_symlink():
            return Said("is_a_link", name=path.name)
    return row_problem


def _why_large(run: Path, left: int) -> Said | None:
    """Reason not to copy a run: too many files, too many bytes, or more bytes than are `left` for
    this command. None if it fits."""
    files_of_run = list(itertools.islice(run.iterdir(), MOST_FILES + 1))
    if len(files_of_run) > MOST_FILES:
        return Said("run_of_many_files", most=MOST_FILES)
    size = sum(path.stat().st_size for path in files_of_run if path.is_file())
    if size > LARGEST_RUN:
        return Said("run_too_large", gb=size / 1e9, gib=LARGEST_RUN >> 30)
    if size > left:
        return Said("collect_by_itself", gib=LARGEST >> 30)
    return None


def _comparable(run: Path) -> tuple[str, dict[str, str]]:
    """Identity of a run's config, and its row without columns in which equal results differ."""
    config = identity(run.parent.name, files.read_text(run / "config.json"))
    ignored = VOLATILE  # a FLOP count of another day is the same count
    if MEASUREMENTS[run.parent.name].on_device:
        ignored = {"hardware"}  # a participant's was renamed
    return config, leave_out(read_csv(run / "row.csv")[0], ignored)


def _copy(theirs: Path, ours: Path, hardware: str) -> None:
    """Copies a run: first its config, with its modification time, last its row. Snakemake then sees
    nothing to redo."""
    ours.mkdir(parents=True, exist_ok=True)
    for leftover in [ours / "config.json", *ours.glob(".*")]:  # of a killed copy
        remove(leftover)
    shutil.copy2(theirs / "config.json", ours / "config.json", follow_symlinks=False)
    for path in sorted(theirs.iterdir()):
        if path.is_file() and path.name not in {"config.json", "row.csv"}:
            partial = ours / f".{path.name}.{os.getpid()}"
            shutil.copyfile(path, partial, follow_symlinks=False)
            partial.replace(ours / path.name)
    [cells] = read_csv(theirs / "row.csv")
    if cells["hardware"] == hardware:
        files.write_text(ours / "row.csv", files.read_text(theirs / "row.csv"))
    else:
        files.write_csv(ours / "row.csv", [{**cells, "hardware": hardware}])


def _merge_plan(theirs: Path, ours: Path, merged: Merged, participant: str = "") -> None:
    """Merges two plans of one experiment and kind of device into one that lists the runs of
    both."""
    if not ours.stem.endswith(COLLECTED):  # the next sweep here overwrites the plain name
        ours = ours.with_stem(ours.stem + COLLECTED)
    try:
        plan = _plan(theirs)
        if participant:
            plan = _plan_of(participant, plan)
    except (FileNotFoundError, ValueError) as error:
        merged.problems.append(Said("not_copied", why=said_by(error)))
        return
    combined = plan
    with suppress(FileNotFoundError, ValueError):  # there is none, or it is unreadable
        combined = _plan(ours)
    for part in ("runs", "excluded"):
        known = {(entry["step"], entry["run"]): entry for entry in combined[part]}
        for entry in plan[part]:
            present = known.get((entry["step"], entry["run"]))
            if present is None:
                combined[part].append(entry)
            elif present != entry:
                merged.problems.append(
                    Said("planned_otherwise", plan=str(theirs), run=entry["run"])
                )
    store.write_if_changed(ours, json.dumps(combined, indent=1) + "\n")


def _plan_of(participant: str, plan: Record) -> Record:
    """A plan with the participant added to the name of its machine, also in folders of its runs."""
    runs = []
    for run in plan["runs"]:
        ceilings = {}
        for name, folder in run.get("ceilings", {}).items():
            ceilings[name] = _folder_of(participant, folder)
        moved = {**run, "folder": _folder_of(participant, run["folder"])}
        if ceilings:
            moved["ceilings"] = ceilings
        runs.append(moved)
    machine = _renamed(Path(plan["hardware"]), participant)
    return {**plan, "hardware": machine.name, "runs": runs}


def _folder_of(participant: str, folder: str) -> str:
    """A run's folder in a plan, `results/HARDWARE/STEP/RUN`, of the participant's machine."""
    path = Path(folder).relative_to(RESULTS)
    return (RESULTS / _renamed(path, participant)).as_posix()


def _plan(path: Path) -> Record:
    plan = manifest.read(path)
    if plan.hardware != path.parents[1].name:
        raise UnreadableError(path, Said("plan_of_another", hardware=plan.hardware))
    return {"excluded": [], **read_json(path)}


def run(sources: Sequence[Path], into: Path, in_class: bool, pack: Path | None) -> int:
    """Collects `sources`, or packs a single one, and prints the outcome. Returns the exit status: 1
    if anything was left out."""
    try:
        if pack is not None:
            return _pack(sources, pack)
        merged = collect(sources, into, in_class)
    except OSError as error:  # runs already copied are complete
        raise files.cannot_be_written(error.filename or into, error) from error
    say(
        in_words(
            Said(
                "collected",
                copied=len(merged.copied),
                present=len(merged.present),
                mb=merged.copied_bytes / 1e6,
                problems=len(merged.problems),
            )
        )
    )
    for problem in merged.problems:
        say(f"  {in_words(problem)}")
    return int(bool(merged.problems))


def _pack(sources: Sequence[Path], archive: Path) -> int:
    """Writes the files of one source that `collect` reads into an archive to hand in, without logs
    and traces."""
    if len(sources) != 1:
        raise ConfigurationError(Said("pack_one_folder", archive=str(archive), count=len(sources)))
    with unpacking_room(archive.with_name(f".{archive.name}{UNPACKED}")) as room:
        folder = _results_of(sources[0], room / "0")
        with tarfile.open(archive, "w:gz") as file:
            for path in sorted(folder.rglob("*")):
                parts = path.relative_to(folder).parts
                is_of_run = parts[0] not in {"tables", "reference", "plan"} and path.name in PACKED
                is_of_plan = parts[1:2] == ("plan",)
                if path.is_file() and not path.is_symlink() and (is_of_run or is_of_plan):
                    file.add(path, Path("results", *parts))
    say(f"{archive}: {archive.stat().st_size / 1e6:.2f} MB")
    return 0


class _Stream(io.BufferedReader):
    """Stream that refuses to read more than READ_AT_ONCE bytes at once, since tarfile reads a
    header whole, however large it claims to be."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= READ_AT_ONCE:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


@contextmanager
def unpacking_room(folder: Path) -> Iterator[Path]:
    """Provides a folder to unpack into, for this process only. Removes its content before and
    after."""
    remove(folder)
    try:
        yield folder
    finally:
        remove(folder)


def unpack(archive: Path, folder: Path) -> None:
    """Writes runs and plans of a tar or zip into a new folder. Raises ConfigurationError that names
    the faulty member."""
    folder.mkdir(parents=True)
    checked = _Checked(LARGEST)
    try:
        with ExitStack() as stack:
            for member, content_of in _members(archive, stack):
                path = PurePosixPath(member.name)
                checked.add(member, path)
                if _is_unpacked(member, path):
                    checked.refuse_linked(path)
                    _write(content_of, member.size, folder / path)
    except BROKEN as error:
        why = said_by(error)
        if checked.name:
            why = of_source(checked.name, why)
        raise ConfigurationError(
            Said("archive_not_unpacked", archive=str(archive), why=why)
        ) from error


def _is_unpacked(member: tarfile.TarInfo, path: PurePosixPath) -> bool:
    """True if a member of an archive is a plan or a file of a run."""
    if member.isdir() or len(path.parts) > DEEPEST:
        return False
    is_of_run = len(path.parts) > 2 and path.parts[-3] in MEASUREMENTS
    return is_of_run or path.match("plan/*.json")


@dataclass
class _Checked:
    """Checks members of an archive one by one. Its methods raise ValueError for a harmful one."""

    left: int  # bytes that further members may take
    name: str = ""  # of the last member, for messages
    members: int = 0
    links: dict[PurePosixPath, str] = field(default_factory=dict)  # links and devices, with names

    def add(self, member: tarfile.TarInfo, path: PurePosixPath) -> None:
        """Adds a member. Raises ValueError if it leads out of its folder or the archive exceeds its
        bounds."""
        self.name = member.name[:200]
        self.left -= max(0, member.size)
        self.members += 1
        if path.is_absolute() or ".." in path.parts or not self.name.isprintable():
            raise CellError(Said("member_leads_out"))
        if self.left < 0 or self.members > MOST_MEMBERS + 1:
            raise CellError(Said("archive_too_large", gib=LARGEST >> 30, most=MOST_MEMBERS))
        if not (member.isreg() or member.isdir()):
            self.links[path] = self.name

    def refuse_linked(self, path: PurePosixPath) -> None:
        """Raises ValueError if a file is a link, or lies below one."""
        for folder in (path, *path.parents):
            if folder in self.links:
                raise CellError(Said("is_link_or_device", name=self.links[folder]))


def _write(content_of: ContentOf, left: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
    )
    with open(descriptor, "wb") as file, content_of() or io.BytesIO() as content:
        while left:
            block = content.read(min(left, READ_AT_ONCE))
            if not block:
                break
            file.write(block)
            left -= len(block)
        if left or content.read(1):  # a zip may claim fewer bytes than it has
            raise CellError(Said("member_not_as_long"))


def _members(archive: Path, stack: ExitStack) -> Iterator[tuple[tarfile.TarInfo, ContentOf]]:
    """Yields each member of an archive with a function that opens it. Members of a zip are
    described as those of a tar."""
    file = stack.enter_context(opened(archive, follow=True))
    if zipfile.is_zipfile(file):
        packed = stack.enter_context(zipfile.ZipFile(file))
        for entry in packed.infolist():
            member = tarfile.TarInfo(entry.filename)
            member.size = entry.file_size
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if entry.is_dir():
                member.type = tarfile.DIRTYPE
            elif kind not in (0, stat.S_IFREG):
                member.type = tarfile.SYMTYPE
            yield member, partial(packed.open, entry)
        return
    file.seek(0)
    opener = OPENERS.get(file.peek(3)[:3], OPENERS.get(file.peek(3)[:2]))
    with (
        _Stream(opener(file) if opener else file) as stream,
        tarfile.open(fileobj=stream, mode="r:") as tar,
    ):
        for header in tar:
            yield header, partial(tar.extractfile, header)
            tar.members.clear()  # type: ignore[attr-defined]  # as it keeps every header
