"""Files that may be broken, or a disk that may be full: bounded reads, and writes that replace a
file only once complete."""

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

# By default Python's csv refuses cells above 131,072 characters, so that a row with one could never
# be read again.
csv.field_size_limit(2**31 - 1)
# Remedy for each error that prevents a write. EDQUOT is missing on some platforms.
REMEDIES = {
    errno.ENOSPC: "disk_full",
    getattr(errno, "EDQUOT", -1): "quota_used_up",
    errno.EROFS: "read_only_files",
    errno.EACCES: "write_denied",
    errno.EPERM: "write_not_permitted",
    errno.EISDIR: "is_folder_give_file",
}
# Beginning of a text that a spreadsheet runs as a formula; East Asian versions also accept the wide
# and small forms of the signs.
FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠﹦﹢﹣﹫]")
LARGEST = 1 << 28  # bytes of a file that is read whole; the tables of 20,000 runs take a tenth
OF_A_RUN = 1 << 23  # bytes of a table in a run's folder, which takes ten times as much memory
SCRATCH = "mfulab-scratch-"  # prefix of temporary folders, which a killed process may leave behind
MOST_FOUND = 100_000  # entries in a searched folder; more, as below /, must be a mistake


class UnreadableError(ValueError):
    """A file that exists but does not hold valid content; the message names it and says why."""

    def __init__(self, path: Path, why: Said | str) -> None:
        self.why = why if isinstance(why, Said) else as_told(why)
        self.said = of_source(str(path), self.why)
        super().__init__(str(self.said))


class AbsentError(FileNotFoundError):
    """A file that does not exist; the message names it."""

    def __init__(self, path: Path) -> None:
        self.why = Said("link_leads_nowhere" if path.is_symlink() else "no_such_file")
        self.said = of_source(str(path), self.why)
        super().__init__(str(self.said))


def found_files(word: str, endings: tuple[str, ...]) -> list[Path]:
    """Files that a command-line argument means, sorted: the file itself, files with these endings
    below a folder, or a glob's matches. Raises ConfigurationError if a folder has too many entries
    or the path is invalid."""
    try:
        path = Path(word).expanduser()
        if path.is_dir():
            return _files_below(path, endings)
        if path.exists():
            return [path]
        if set("*?[") & set(word):
            return _files_matching(path)
        return []
    # The path is too long, the pattern is invalid, or `~user` does not exist.
    except (OSError, ValueError, RuntimeError) as error:
        why = f"{getattr(error, 'strerror', None) or error}."
        raise ConfigurationError(of_source(word, why)) from error


def _files_below(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Files below a folder with these endings, sorted. Raises ConfigurationError if the folder has
    more than `MOST_FOUND` entries."""
    entries = list(itertools.islice(folder.rglob("*"), MOST_FOUND + 1))
    if len(entries) > MOST_FOUND:
        too_many = Said("too_many_files", {"most": MOST_FOUND})
        raise ConfigurationError(of_source(str(folder), too_many))
    return sorted(file for file in entries if file.name.endswith(endings) and file.is_file())


def _files_matching(path: Path) -> list[Path]:
    """Files that a glob matches, sorted."""
    base = Path(path.anchor) if path.is_absolute() else Path()
    pattern = str(path.relative_to(path.anchor)) if path.anchor else str(path)
    return sorted(file for file in base.glob(pattern) if file.is_file())


def read_text(path: Path, most: int = LARGEST, *, follow: bool = False) -> str:
    """Text of a UTF-8 file of at most `most` bytes; `follow` also reads through a symbolic link.
    Raises FileNotFoundError if it is absent, else UnreadableError."""
    try:
        return read_bytes(path, most, follow=follow).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(path, Said("no_utf8_text", {"byte": error.start})) from error


def read_given(path: Path, most: int = LARGEST) -> str:
    """Text of a file that a user named; symbolic links are followed. Raises ConfigurationError if
    it cannot be read."""
    try:
        return read_text(path, most, follow=True)
    except (FileNotFoundError, UnreadableError) as error:
        raise ConfigurationError(whole_sentence(error)) from error


def read_tail(path: Path, most: int) -> str:
    """The last `most` bytes of a text file of any size; invalid UTF-8 is replaced. Raises like
    `read_text`."""
    return read_bytes(path, -most).decode("utf-8", errors="replace")


def digest(path: Path) -> str:
    """SHA-256 of a file of any size; symbolic links are followed. Raises like `read_text`."""
    with opened(path, follow=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(folder: Path, ending: str) -> list[str]:
    """Path and digest, separated by a space, of each file below a folder with this ending, sorted.
    Raises ConfigurationError if one cannot be read."""
    try:
        return [f"{path} {digest(path)}" for path in sorted(folder.rglob(f"*{ending}"))]
    except (FileNotFoundError, UnreadableError) as error:
        no_file = Said("remove_or_give_file", {"sentence": said_by(error)})
        raise ConfigurationError(no_file) from error


def read_bytes(path: Path, most: int = LARGEST, *, follow: bool = False) -> bytes:
    """Content of a file of at most `most` bytes; if `most` is negative, its last `-most` bytes.
    Raises like `read_text`."""
    with opened(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most > 0:
            raise UnreadableError(path, Said("larger_than", {"mib": most >> 20}))
        file.seek(0 if most > 0 else max(0, size + most))
        return _up_to(file, abs(most), size)


def _up_to(file: io.BufferedReader, most: int, size: int) -> bytes:
    """Reads at most `most` bytes from a file of `size` bytes. Never asks for `most` at once, since
    Python allocates what it is asked to read, up to 256 MiB."""
    content = file.read(min(most, size))
    # files in /proc are longer than their size
    while more := file.read(min(most - len(content), io.DEFAULT_BUFFER_SIZE)):
        content += more
    return content


class _Ready(io.FileIO):
    """A file whose reads never wait. Some files in /proc count as regular but hold nothing until
    the kernel writes to them."""

    def readinto(self, buffer: Any, /) -> int:
        """Reads into a buffer. Raises BlockingIOError instead of waiting."""
        return self._there(super().readinto(buffer))

    def readall(self) -> bytes:
        """Reads the remaining content. Raises BlockingIOError instead of waiting."""
        return self._there(super().readall())

    @staticmethod
    def _there(result: Any) -> Any:
        if result is None:
            raise BlockingIOError(errno.EAGAIN, "holds nothing that can be read now")
        return result


@contextmanager
def opened(path: Path, *, follow: bool = False) -> Iterator[io.BufferedReader]:
    """Opens a regular file for reading, and nothing else, since a pipe may never end. A symbolic
    link only if `follow`. Raises like `read_text`."""
    try:
        link_flag = 0 if follow else os.O_NOFOLLOW
        descriptor = os.open(path, os.O_RDONLY | link_flag | os.O_NONBLOCK | os.O_CLOEXEC)
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
    """True if a path, with symbolic links resolved, lies in a folder."""
    return path.resolve().is_relative_to(folder.resolve())


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, with finite numbers only. Raises like `read_text`."""
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
    """Rows of a CSV file as {column: cell}. Raises like `read_text`, and for a line with more or
    fewer cells than the header."""
    return parse_csv(read_text(path, most), path)


def parse_csv(text: str, path: Path) -> list[dict[str, str]]:
    """Rows of a CSV text as {column: cell}. Raises UnreadableError, naming `path`, if the text is
    not a valid table."""
    try:
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise UnreadableError(path, Said("file_not_csv", {"error": str(error)})) from error
    if not lines:
        raise UnreadableError(path, Said("table_empty"))
    header = lines[0]
    if len(set(header)) < len(header):
        [(name, _)] = Counter(header).most_common(1)
        raise UnreadableError(path, Said("columns_alike", {"name": repr(name)}))
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(header):
            counts = {"line": number, "count": len(cells), "header": len(header)}
            raise UnreadableError(path, Said("cells_lack", counts))
    if "'" in text:
        lines = [list(map(unquoted, cells)) for cells in lines]
    return [dict(zip(header, cells, strict=True)) for cells in lines[1:]]


def unquoted(cell: str) -> str:
    """Removes the quote that `write_csv` puts before a text that looks like a formula."""
    if cell[:1] == "'" and FORMULA.match(cell):
        return cell[1:]
    return cell


def write_text(path: Path, text: str) -> None:
    """Writes a file by renaming a complete temporary one; devices and pipes are written directly. A
    folder of that name is first renamed to `NAME.folder-…`. Raises ConfigurationError on failure,
    leaving no partial file."""
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
    """Writes JSON like `write_text`; lone surrogates, which a log may hold, become question
    marks."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def write_csv(
    path: Path, rows: Iterable[Mapping[str, object]], columns: Iterable[str] | None = None
) -> None:
    """Writes a CSV file like `write_text`. None becomes an empty cell, lists and dicts become JSON.
    `columns` default to those of the first row."""
    if columns is None:
        rows = list(rows)
        columns = rows[0] if rows else ()
    names = list(columns)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    write_text(path, file.getvalue())


def _cell(value: object) -> object:
    """Value of a cell: JSON for lists and dicts. A text that a spreadsheet would run as a formula
    is prefixed by a quote."""
    if value is None:  # most cells of a wide table
        return None
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
    """The error for a file or folder that cannot be written, with a remedy."""
    remedy = Said("give_write_permission", {"error": error.strerror or str(error)})
    if error.errno in REMEDIES:
        remedy = Said(REMEDIES[error.errno])
    if error.errno == errno.ENOSPC and _is_without_inodes(Path(path)):
        remedy = Said("no_inode_free")
    return ConfigurationError(Said("file_not_written", {"file": str(path), "remedy": remedy}))


def _is_without_inodes(path: Path) -> bool:
    """True if the file system of a path has no free inode, so that it can hold no further file."""
    existing = next((parent for parent in (path, *path.parents) if parent.exists()), Path())
    with suppress(OSError):
        free = os.statvfs(existing)
        return free.f_files > 0 and free.f_favail == 0
    return False


def remove(path: Path) -> None:
    """Removes a file or a folder; does nothing if the path does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def scratch(parent: str | None = None) -> Iterator[Path]:
    """A temporary folder below `parent` (default: the system's), locked while in use and removed
    after the block. First removes folders that killed processes of this user left, recognised by
    their missing lock."""
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
    """Creates a folder and returns it with the descriptor of its lock. Tries again if another
    process took it for abandoned, and removed it, before it was locked."""
    while True:
        folder = tempfile.mkdtemp(prefix=SCRATCH, dir=base)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # a file system without locks
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
