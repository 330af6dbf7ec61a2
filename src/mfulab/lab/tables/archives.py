"""Archives from elsewhere: of their members, files that are wanted are written, by name, into files opened here."""

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, opened, remove

LARGEST = 16 << 30  # bytes of all members together
MOST = 1_000_000  # members
READ_AT_ONCE = 1 << 20  # bytes; a header that claims more is none
OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7z": lzma.open}
BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(OSError, EOFError, RuntimeError, ValueError, OverflowError, UnreadableError),
)


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    is_folder: bool
    is_file: bool
    open: Callable[[], IO[bytes] | None]


class _Stream(io.BufferedReader):
    """Decompressed bytes, of which no header may claim more than READ_AT_ONCE: tarfile reads headers whole."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= READ_AT_ONCE:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


@contextmanager
def room(folder: Path) -> Iterator[Path]:
    """A place to unpack into, which is nobody else's; what is there is removed, before and after."""
    remove(folder)
    try:
        yield folder
    finally:
        remove(folder)


def unpack(archive: Path, folder: Path, is_wanted: Callable[[Sequence[str]], bool]) -> None:
    """Writes those files of a tar or zip whose path `is_wanted` into the new `folder`. Raises ConfigurationError.

    It names the member that leads elsewhere, is a link or a device, stands there twice, or makes more than LARGEST.
    """
    folder.mkdir(parents=True)
    left, number, name, links = LARGEST, 0, "", dict[PurePosixPath, str]()
    try:
        with ExitStack() as stack:
            for number, member in enumerate(_members(archive, stack)):
                path, name = PurePosixPath(member.name), member.name[:200]
                left -= max(0, member.size)
                if path.is_absolute() or ".." in path.parts or not name.isprintable():
                    raise ValueError("leads out of its folder, or has a name that is no text")
                if left < 0 or number > MOST:
                    raise ValueError(f"with it the archive is above {LARGEST >> 30} GiB, or {MOST:,} files")
                if not (member.is_file or member.is_folder):
                    links[path] = name
                if member.is_folder or not is_wanted(path.parts):
                    continue
                if linked := next((links[place] for place in (path, *path.parents) if place in links), ""):
                    raise ValueError(f"{linked} is a link or a device")
                _write(member, folder / path)
    except BROKEN as error:
        of = f"{name}: " if name else ""
        raise ConfigurationError(f"{archive}: cannot be unpacked ({of}{error}). Nothing was copied.") from error


def _write(member: _Member, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as file, member.open() or io.BytesIO() as content:
        left = member.size
        while left and (block := content.read(min(left, READ_AT_ONCE))):  # a zip may claim less than there is
            file.write(block)
            left -= len(block)
        if left or content.read(1):
            raise ValueError("not as long as the archive says")


def _members(archive: Path, stack: ExitStack) -> Iterator[_Member]:
    file = stack.enter_context(opened(archive, follow=True))
    if zipfile.is_zipfile(file):
        packed = stack.enter_context(zipfile.ZipFile(file))
        for entry in packed.infolist():
            kind = stat.S_IFMT(entry.external_attr >> 16)
            is_file = kind in (0, stat.S_IFREG) and not entry.is_dir()
            yield _Member(entry.filename, entry.file_size, entry.is_dir(), is_file, partial(packed.open, entry))
        return
    file.seek(0)
    opener = OPENERS.get(file.peek(3)[:3], OPENERS.get(file.peek(3)[:2]))
    stream = stack.enter_context(_Stream(opener(file) if opener else file))
    with tarfile.open(fileobj=stream, mode="r:") as tar:
        for one in tar:
            yield _Member(one.name, one.size, one.isdir(), one.isreg(), partial(tar.extractfile, one))
            tar.members.clear()  # type: ignore[attr-defined]  # of which it keeps every one
