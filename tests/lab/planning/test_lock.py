"""The results' lock where the file system keeps none: it lives as long as its process."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.said import refused

from mfulab.core.errors import ConfigurationError
from mfulab.core.json_text import parse_json
from mfulab.core.said import Said, of_source
from mfulab.lab.planning import store


@pytest.fixture
def left_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the lock of a holder on this host; the file system refuses to store."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def write(process: int, **differences: str) -> Path:
        holder = {**store._this_process(), "process": process, **differences}
        (tmp_path / store.LOCK).write_text(json.dumps(holder))
        return tmp_path

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(store, "_held", {})
    yield write
    for path in list(store._held):
        store._release(path, os.getpid())


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("do", [store.take, store.clear, store.check_free])
def test_a_holder_whose_process_lives_is_left_alone(left_by, do):
    results = left_by(os.getppid())
    before = (results / store.LOCK).read_text()
    with pytest.raises(
        ConfigurationError,
        match=rf"process {os.getppid()} .* is still at it.*remove .*{store.LOCK}",
    ):
        do(results)
    assert (results / store.LOCK).read_text() == before


def test_a_holder_whose_process_has_ended_was_killed(left_by, ended, capsys):
    results = left_by(ended)
    assert store.take(results)
    warning = of_source(f"{results}/", Said("results_without_locks"))
    assert capsys.readouterr().err == f"mfulab: {warning}\n"
    assert json.loads((results / store.LOCK).read_text())["process"] == os.getpid()
    assert not store.take(results), "it is held"


def test_a_holder_before_this_start_of_the_machine_has_ended(left_by):
    assert store.take(left_by(os.getppid(), boot="another"))


@pytest.mark.parametrize(
    "elsewhere", [{"host": "elsewhere", "boot": "another"}, {"host": "a-container"}]
)
def test_a_holder_that_cannot_be_looked_at_may_live_until_unlocked(left_by, ended, elsewhere):
    results = left_by(ended, **elsewhere)
    with pytest.raises(ConfigurationError, match="make unlock"):
        store.take(results)
    store.clear(results)
    assert not store.take(results)


def test_a_holder_that_lives_on_another_host_is_found_where_locks_hold_on_one_host_only(
    left_by, monkeypatch, capsys
):
    """As on NFS mounted with `local_lock=flock`: this host gets the lock at once."""
    results = left_by(os.getpid(), host="elsewhere", boot="another")
    before = (results / store.LOCK).read_text()
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: None)
    with refused(ConfigurationError, "results_left_held", host="elsewhere"):
        store.take(results)
    assert (results / store.LOCK).read_text() == before
    assert capsys.readouterr().err == "", "it has locks, as far as this host can tell"


@pytest.mark.parametrize("number", [0, -1, 1 << 31, 10**30])
def test_a_number_that_no_process_has_is_none(left_by, number):
    assert store.take(left_by(number))


@pytest.mark.parametrize(
    "text", ["[" * 60_000, '{"a":' * 60_000, "NaN", "5", "\0" * 500, '{"host": 5', ""]
)
def test_a_lock_that_names_nobody_is_free(left_by, tmp_path, text):
    (tmp_path / store.LOCK).write_text(text)
    assert not store.take(tmp_path)
    assert parse_json((tmp_path / store.LOCK).read_text())["process"] == os.getpid()


def test_several_may_ask_whether_results_are_free_and_none_holds_them(tmp_path):
    """Commands beside one another, such as a run a GPU, do not refuse each other."""
    with (tmp_path / store.LOCK).open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        store.check_free(tmp_path)
    with (tmp_path / store.LOCK).open("w") as sweep:
        fcntl.flock(sweep, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(ConfigurationError, match="is still at it"):
            store.check_free(tmp_path)
