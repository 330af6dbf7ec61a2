"""Files that may be broken or run out of room: read within bounds, written by renaming a finished
one."""

import csv
import errno
import fcntl
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from mfulab.core.errors import ConfigurationError, whole_sentence
from mfulab.core.json_text import parse_json
from mfulab.core.said import Said, as_told, of_source, said_by

# Python refuses cells above 131,072 characters, and with them every later look at a row that holds
# one.
csv.field_size_limit(2**31 - 1)
# What ends a write, with the remedy. EDQUOT is missing on some platforms.
REMEDIES = {
    errno.ENOSPC: "disk_full",
    getattr(errno, "EDQUOT", -1): "quota_used_up",
    errno.EROFS: "read_only_files",
    errno.EACCES: "write_denied",
    errno.EPERM: "write_not_permitted",
    errno.EISDIR: "is_folder_give_file",
}
# How a text begins that a spreadsheet runs; East Asian ones also take wide and small forms of signs.
FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠﹦﹢﹣﹫]")
LARGEST = 1 << 28  # bytes of a file that is read whole; the tables of 20,000 runs take a tenth
OF_A_RUN = 1 << 23  # bytes of a table in a run's folder, which become ten times as many in memory
SCRATCH = "mfulab-scratch-"  # how folders begin that a kill may leave
MOST_FOUND = 100_000  # entries of a folder that is searched; more, as below /, were not meant


class UnreadableError(ValueError):
    """A file that is there and does not hold what it should; the message names it and says why."""

    def __init__(self, path: Path, why: Said | str) -> None:
        self.why = why if isinstance(why, Said) else as_told(why)
        self.said = of_source(str(path), self.why)
        super().__init__(str(self.said))


class AbsentError(FileNotFoundError):
    """A file that is not there; the message names it."""

    def __init__(self, path: Path) -> None:
        self.why = Said("link_leads_nowhere" if path.is_symlink() else "no_such_file")
        self.said = of_source(str(path), self.why)
        super().__init__(str(self.said))


def found_files(word: str, endings: tuple[str, ...]) -> list[Path]:
    """Files that a word means, in order: itself, those below a folder with these endings, or a
    glob's matches. Raises ConfigurationError for too many, or no path."""
    try:
        path = Path(word).expanduser()
        if path.is_dir():
            return _files_below(path, endings)
        if path.exists():
            return [path]
        if set("*?[") & set(word):
            return _files_matching(path)
        return []
    # Too long, no pattern, or a home that is nobody's.
    except (OSError, ValueError, RuntimeError) as error:
        why = f"{getattr(error, 'strerror', None) or error}."
        raise ConfigurationError(of_source(word, why)) from error


def _files_below(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Files below a folder with these endings, in order. Raises ConfigurationError for too many
    entries."""
    entries = list(itertools.islice(folder.rglob("*"), MOST_FOUND + 1))
    if len(entries) > MOST_FOUND:
        too_many = Said("too_many_files", {"most": MOST_FOUND})
        raise ConfigurationError(of_source(str(folder), too_many))
    return sorted(file for file in entries if file.name.endswith(endings) and file.is_file())


def _files_matching(path: Path) -> list[Path]:
    """Files that a glob matches, in order."""
    base = Path(path.anchor) if path.is_absolute() else Path()
    pattern = str(path.relative_to(path.anchor)) if path.anchor else str(path)
    return sorted(file for file in base.glob(pattern) if file.is_file())


def read_text(path: Path, most: int = LARGEST, *, follow: bool = False) -> str:
    """Text of a UTF-8 file of at most `most` bytes; `follow` reads where a link leads. Raises
    FileNotFoundError, and UnreadableError for anything else that is there."""
    try:
        return read_bytes(path, most, follow=follow).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(path, Said("no_utf8_text", {"byte": error.start})) from error


def read_given(path: Path, most: int = LARGEST) -> str:
    """Text of a file that a user names, a link followed; raises ConfigurationError, saying why it
    cannot be read."""
    try:
        return read_text(path, most, follow=True)
    except (FileNotFoundError, UnreadableError) as error:
        raise ConfigurationError(whole_sentence(error)) from error


def read_tail(path: Path, most: int) -> str:
    """The last `most` bytes of a text file, however large; what is not UTF-8 is replaced. Raises as
    `read_text`."""
    return read_bytes(path, -most).decode("utf-8", errors="replace")


def digest(path: Path) -> str:
    """SHA-256 of a file of any size, its link followed. Raises as `read_text`."""
    with opened(path, follow=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(folder: Path, ending: str) -> list[str]:
    """Path and digest of each file below a folder with this ending. Raises ConfigurationError for
    one that is none."""
    try:
        return [f"{path} {digest(path)}" for path in sorted(folder.rglob(f"*{ending}"))]
    except (FileNotFoundError, UnreadableError) as error:
        no_file = Said("remove_or_give_file", {"sentence": said_by(error)})
        raise ConfigurationError(no_file) from error


def read_bytes(path: Path, most: int = LARGEST, *, follow: bool = False) -> bytes:
    """A file of at most `most` bytes, or its last bytes where that is negative. Raises as
    `read_text`."""
    with opened(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most > 0:
            raise UnreadableError(path, Said("larger_than", {"mib": most >> 20}))
        file.seek(0 if most > 0 else max(0, size + most))
        return _up_to(file, abs(most), size)


def _up_to(file: io.BufferedReader, most: int, size: int) -> bytes:
    """At most `most` bytes of a file that says it has `size`. Python sets aside all that it is to
    read at once, so that a bound of 256 MiB would cost 256 MiB."""
    content = file.read(min(most, size))
    # what /proc shows is longer than its size says
    while more := file.read(min(most - len(content), io.DEFAULT_BUFFER_SIZE)):
        content += more
    return content


class _Ready(io.FileIO):
    """A file that is read without waiting: some of /proc are called regular and hold nothing until
    the kernel has something to say."""

    def readinto(self, buffer: Any, /) -> int:
        """Reads into a buffer. Raises BlockingIOError where it would have to wait."""
        return self._there(super().readinto(buffer))

    def readall(self) -> bytes:
        """Reads all that is there. Raises BlockingIOError where it would have to wait."""
        return self._there(super().readall())

    @staticmethod
    def _there(held: Any) -> Any:
        if held is None:
            raise BlockingIOError(errno.EAGAIN, "holds nothing that can be read now")
        return held


@contextmanager
def opened(path: Path, *, follow: bool = False) -> Iterator[io.BufferedReader]:
    """A regular file, open to be read, as a pipe may never end; a link only if `follow`. Raises as
    `read_text`."""
    try:
        kept = 0
        if not follow:
            kept = os.O_NOFOLLOW
        descriptor = os.open(path, os.O_RDONLY | kept | os.O_NONBLOCK | os.O_CLOEXEC)
        with cast(io.BufferedReader, io.BufferedReader(_Ready(descriptor))) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableError(path, Said("no_regular_file"))
            yield file
    except (FileNotFoundError, NotADirectoryError) as error:
        raise AbsentError(path) from error
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise UnreadableError(path, Said("link_not_followed")) from error
        raise UnreadableError(path, error.strerror or str(error)) from error


def is_inside(path: Path, folder: Path) -> bool:
    """True if a path, its links followed, lies in a folder."""
    return path.resolve().is_relative_to(folder.resolve())


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, its numbers finite. Raises as `read_text`."""
    try:
        content = parse_json(read_text(path))
    except UnreadableError:
        raise
    except ValueError as error:
        raise UnreadableError(path, Said("file_not_json", {"error": str(error)})) from error
    if not isinstance(content, dict):
        raise UnreadableError(path, Said("no_json_object", {"kind": type(content).__name__}))
    return content


def read_csv(path: Path, most: int = OF_A_RUN) -> list[dict[str, str]]:
    """Lines of a CSV file by column. Raises as `read_text`, and for a line with more or fewer cells
    than the header."""
    return parse_csv(read_text(path, most), path)


def parse_csv(text: str, path: Path) -> list[dict[str, str]]:
    """The lines of a CSV text by column; `path` is named where it is none."""
    try:
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise UnreadableError(path, Said("file_not_csv", {"error": str(error)})) from error
    if not lines:
        raise UnreadableError(path, Said("table_empty"))
    header = lines[0]
    [(name, count)] = Counter(header).most_common(1) or [("", 0)]
    if count > 1:
        raise UnreadableError(path, Said("columns_alike", {"name": repr(name)}))
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(header):
            counts = {"line": number, "count": len(cells), "header": len(header)}
            raise UnreadableError(path, Said("cells_lack", counts))
    return [dict(zip(header, map(unquoted, cells), strict=True)) for cells in lines[1:]]


def unquoted(cell: str) -> str:
    """A cell without the quote that keeps a text from being a formula."""
    if cell[:1] == "'" and FORMULA.match(cell):
        return cell[1:]
    return cell


def write_text(path: Path, text: str) -> None:
    """Writes a file by renaming a finished one; a folder at its place stays beside it as
    `NAME.folder-…`. A device or a pipe, such as /dev/null, is written into. Raises
    ConfigurationError, leaving nothing partial, where it cannot."""
    now = time.time_ns()
    temporary = path.with_name(f".{os.getpid()}.{now}.partial")
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, encoding="utf-8", errors="replace", newline="")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8", errors="replace", newline="")
        if path.is_dir() and not path.is_symlink():
            path.rename(path.with_name(f"{path.name}.folder-{now}"))
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_be_written(path, error) from error
        raise


def write_json(path: Path, value: object, indent: int | None = None) -> None:
    """Writes JSON as `write_text`; half a character, which a log may hold, becomes a question
    mark."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def write_csv(
    path: Path, rows: Iterable[Mapping[str, object]], columns: Iterable[str] | None = None
) -> None:
    """Writes a CSV file as `write_text`: None empty, lists and mappings JSON; `columns` default to
    the first row's."""
    rows = list(rows)
    names = list(columns if columns is not None else rows[0] if rows else ())

    file = io.StringIO()
    writer = csv.DictWriter(file, names, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    write_text(path, file.getvalue())


def _cell(value: object) -> object:
    """A spreadsheet runs a text that begins like a formula: one quote keeps it a text."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    if not isinstance(value, str) or not FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def cannot_be_written(path: Path | str, error: OSError) -> ConfigurationError:
    """The error for a file or folder that cannot be written, with what to do about it."""
    remedy = Said("give_write_permission", {"error": error.strerror or str(error)})
    if error.errno in REMEDIES:
        remedy = Said(REMEDIES[error.errno])
    if error.errno == errno.ENOSPC and _is_without_inodes(Path(path)):
        remedy = Said("no_inode_free")
    return ConfigurationError(Said("file_not_written", {"file": str(path), "remedy": remedy}))


def _is_without_inodes(path: Path) -> bool:
    """True if the file system of a path holds as many files as it can, whatever space is left."""
    existing = next((parent for parent in (path, *path.parents) if parent.exists()), Path())
    with suppress(OSError):
        free = os.statvfs(existing)
        return free.f_files > 0 and free.f_favail == 0
    return False


def remove(path: Path) -> None:
    """Removes a file or a folder, whatever stands there; nothing if nothing does."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def scratch(parent: str | None = None) -> Iterator[Path]:
    """A folder of this process alone below `parent` or the system's, gone after the block. Removes
    what killed processes of this user left: the kernel drops their locks."""
    base = parent or tempfile.gettempdir()
    with suppress(OSError):
        for entry in os.scandir(base):
            if entry.name.startswith(SCRATCH):
                _remove_abandoned(entry.path)
    folder, descriptor = _locked_folder(base)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(base: str) -> tuple[str, int]:
    """A new folder and the descriptor of its lock. Another process may take it for abandoned before
    the lock is held, and remove it: then there is another."""
    while True:
        folder = tempfile.mkdtemp(prefix=SCRATCH, dir=base)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # of a file system that keeps none
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if Path(folder).exists():
                return folder, descriptor
            os.close(descriptor)


def _remove_abandoned(folder: str) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
