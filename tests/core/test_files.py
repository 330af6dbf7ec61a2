"""Files are written whole or not at all."""

import csv
import errno
import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.planted import PLANTED

from mfulab.core import files
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, cannot_be_written, read_json, scratch, write_text
from mfulab.core.json_text import load_object


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "row.csv"
    files.write_csv(path, [{"a": 1}])

    def rows():
        yield {"a": 2}
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        files.write_csv(path, rows())
    assert files.read_csv(path) == [{"a": "1"}]
    assert list(tmp_path.iterdir()) == [path]


def test_cells_are_text_json_or_empty(tmp_path):
    path = tmp_path / "new folder/t.csv"
    files.write_csv(
        path, [{"a": None, "b": {"x": [1, 2]}, "c": 0.1, "more": 1}], ["a", "b", "c", "absent"]
    )
    assert files.read_csv(path) == [{"a": "", "b": '{"x": [1, 2]}', "c": "0.1", "absent": ""}]


def test_columns_are_those_of_the_first_row(tmp_path):
    files.write_csv(tmp_path / "t.csv", iter([{"b": 1, "a": 2}, {"a": 3}]))
    with (tmp_path / "t.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["b", "a"], ["1", "2"], ["", "3"]]


def test_json_is_written_and_read(tmp_path):
    files.write_json(tmp_path / "t.json", {"이름": [1, None]})
    assert files.read_json(tmp_path / "t.json") == {"이름": [1, None]}
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8")) == {"이름": [1, None]}


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        files.write_csv(tmp_path / "file/t.csv", [{"a": 1}])


def test_a_folder_at_the_place_of_a_file_stays_beside_it_with_what_it_holds(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/row.csv").write_text("measured")
    files.write_csv(tmp_path / "results", [{"a": 1}])
    assert files.read_csv(tmp_path / "results") == [{"a": "1"}]
    [kept] = tmp_path.glob("results.folder-*/row.csv")
    assert kept.read_text() == "measured"


def test_a_pipe_is_written_into_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "a line\n")
    assert os.read(reader, 100) == b"a line\n"
    os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_device_is_written_into_and_stays_one():
    ours, theirs = os.openpty()
    device = Path(os.ttyname(theirs))
    write_text(device, "a line")
    assert os.read(ours, 100) == b"a line"
    assert device.is_char_device()
    os.close(ours)
    os.close(theirs)


def test_the_longest_name_that_a_folder_holds_is_written(tmp_path):
    path = tmp_path / ("가" * 85)
    files.write_text(path, "text")
    assert files.read_text(path) == "text"


@pytest.mark.parametrize(
    "cell",
    [
        *("=1+1", "+a", "-a", "@x", "'=x", "''-y", "\tx", "\n=x", "'", "plain", "-1.5", "+2"),
        *("＝1+1", "＋a", "－a", "＠x", "'＝x", "﹦1", "﹢a", "﹣a", "﹫x", "한＝"),
    ],
)
def test_a_spreadsheet_runs_no_cell_and_reading_gives_back_what_was_written(tmp_path, cell):
    path = tmp_path / "t.csv"
    files.write_csv(path, [{"text": cell}])
    with path.open(newline="") as file:
        [_, [written]] = csv.reader(file)
    assert written[:1] not in "=@\t\n＝＋－＠﹦﹢﹣﹫" or not written
    assert written[:1] not in "+-" or float(written)
    assert files.read_csv(path) == [{"text": cell}]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "Is a directory|not a regular file"),
        (lambda path: path.symlink_to("/etc/passwd"), "a link"),
        (lambda path: os.mkfifo(path), "not a regular file"),
        (lambda path: path.write_bytes(b"a\xff"), r"not UTF-8 text \(byte 1\)"),
        (lambda path: path.write_text(""), "empty"),
        (lambda path: path.write_text("a,b\n1\n"), "line 2 has 1 cells, the header 2"),
    ],
)
def test_what_is_no_table_is_named(tmp_path, make, words):
    path = tmp_path / "row.csv"
    make(path)
    with pytest.raises(files.UnreadableError, match=f"{re.escape(str(path))}: .*({words})"):
        files.read_csv(path)


@pytest.mark.parametrize("text", ["[1]", "3", "{", "{" * 100_000, "nul"])
def test_what_is_no_object_is_named(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(files.UnreadableError, match=re.escape(str(path))):
        files.read_json(path)


def test_the_end_of_a_long_log_is_read_without_its_beginning(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.seek(3 << 30)  # a hole
        file.write(b"the end")
    assert files.read_tail(path, 7) == "the end"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "the disk is full. Free some space"),
        (errno.EDQUOT, "your quota is used up. Free some space"),
    ],
)
def test_a_full_disk_and_a_used_up_quota_have_their_remedy(tmp_path, monkeypatch, number, remedy):
    path = tmp_path / "row.csv"

    def full(*arguments):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigurationError, match=remedy):
        files.write_text(path, "a row")
    assert not path.exists()


@pytest.mark.parametrize("what", PLANTED)
def test_only_regular_files_are_read(tmp_path, what):
    path = tmp_path / "a.yaml"
    PLANTED[what](path)
    for read in (files.digest, lambda path: files.read_text(path, follow=True), files.read_csv):
        with pytest.raises((files.UnreadableError, FileNotFoundError), match=re.escape(str(path))):
            read(path)
    with pytest.raises(ConfigurationError, match=re.escape(str(path))):
        files.digests(tmp_path, ".yaml")


def test_a_file_of_which_nothing_can_be_read_yet_is_named(tmp_path, monkeypatch):
    """As /proc/kmsg is, which says that it is regular."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    ends = [os.open(path, kind | os.O_NONBLOCK) for kind in (os.O_RDONLY, os.O_WRONLY)]
    monkeypatch.setattr(files.stat, "S_ISREG", lambda _: True)
    for most in (1, -1):
        with (
            pytest.raises(files.UnreadableError, match=r"kmsg: .*nothing"),
            files.opened(path) as it,
        ):
            it.read(most)
    with pytest.raises(ValueError, match=r"kmsg: .*nothing"):
        load_object(str(path))
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("read", [read_json, lambda path: load_object(str(path))])
def test_a_small_file_takes_little_memory_whatever_the_bound(tmp_path, read):
    """Under a limit of memory, a bound of 256 MiB would end a command that reads 10 bytes."""
    path = tmp_path / "small.json"
    path.write_text('{"a": 1}')
    read(path)
    tracemalloc.start()
    try:
        assert read(path) == {"a": 1}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_is_longer_than_it_says_is_read_to_its_end(tmp_path):
    path = tmp_path / "grows"
    path.write_bytes(b"x" * 30_000)
    with path.open("rb") as file:
        assert len(files._up_to(file, 1 << 20, 0)) == 30_000
    with path.open("rb") as file:
        assert len(files._up_to(file, 20_000, 0)) == 20_000


def test_a_link_to_a_file_is_followed_where_that_is_asked(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert files.read_text(tmp_path / "link", follow=True) == "x"
    assert files.digest(tmp_path / "link") == files.digest(tmp_path / "file")


def test_the_table_of_a_run_is_read_up_to_a_bound(tmp_path):
    path = tmp_path / "samples.csv"
    path.write_text("a\n" + "1\n" * (files.OF_A_RUN // 2))
    with pytest.raises(files.UnreadableError, match=r"samples\.csv: larger than 8 MiB"):
        files.read_csv(path)


def test_a_folder_is_searched_up_to_a_bound(tmp_path, monkeypatch):
    for name in ("a.json", "b.json", "b/c.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [path.name for path in files.found_files(str(tmp_path), (".json",))]
    assert found == ["a.json", "c.json", "b.json"]
    monkeypatch.setattr(files, "MOST_FOUND", 3)
    with pytest.raises(ConfigurationError, match="holds more than 3 files"):
        files.found_files(str(tmp_path), (".json",))


@pytest.mark.parametrize("word", ["x" * 5000, "~nobody_at_all/x", "a/**b/*"])
def test_a_word_that_is_no_path_is_one_sentence(word):
    with pytest.raises(ConfigurationError, match=re.escape(word[:100])):
        files.found_files(word, (".json",))


def test_what_a_killed_process_left_is_removed_and_what_another_holds_is_not(
    tmp_path: Path,
) -> None:
    """By the kernel's lock: a process number means nothing to another container that shares the
    folder."""
    code = """
import sys, time
from mfulab.core.files import scratch
with scratch(sys.argv[1]) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""
    killed, living = (
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    )
    folders = [Path(process.stdout.readline().strip()) for process in (killed, living)]
    killed.kill()
    killed.wait()
    (tmp_path / "mfulab-scratch-link").symlink_to(tmp_path)
    for folder in folders:
        (folder / "series.csv").write_text("x")
    try:
        with scratch(str(tmp_path)) as own:
            assert sorted(
                path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()
            ) == sorted([own, folders[1]])
        assert not own.exists()
    finally:
        living.kill()
        living.wait()
        living.stdout.close()
        killed.stdout.close()


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999"])
def test_json_holds_finite_numbers(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"arguments": {{"x": {text}}}}}')
    with pytest.raises(UnreadableError, match=r"config.json: not JSON .*finite"):
        read_json(path)


@pytest.mark.parametrize(
    ("files", "free", "is_said"), [(600, 0, True), (600, 5, False), (0, 0, False)]
)
def test_a_disk_without_inodes_is_told_from_one_without_space(
    tmp_path, monkeypatch, files, free, is_said
):
    """Some file systems count no files, and say 0 of both."""
    counts = SimpleNamespace(f_files=files, f_favail=free)
    monkeypatch.setattr(os, "statvfs", lambda _: counts)
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    said = str(cannot_be_written(tmp_path / "new/row.csv", error))
    assert ("no inode is free" in said) is is_said
    assert str(tmp_path / "new/row.csv") in said


def test_a_header_of_100_000_columns_is_read_once(tmp_path):
    """Looking each up among all of them would take minutes."""
    names = [f"c{number}" for number in range(100_000)]
    text = f"{','.join(names)}\n{','.join('1' * len(names))}\n"
    [row] = files.parse_csv(text, tmp_path)
    assert len(row) == len(names)
    with pytest.raises(UnreadableError, match="two columns"):
        files.parse_csv(f"{','.join([*names, 'c7'])}\n", tmp_path)
