"""`mfulab gate`: two commands in turn, commits in a worktree that goes again, and what commands may
do wrong."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.processes import pid_in, until

from mfulab.cli import gate, gate_text
from mfulab.cli.main import main
from mfulab.core.language import Texts
from mfulab.core.language.verdicts import say
from mfulab.core.said import Said

QUICK = ["--minutes", "2"]  # at the most: each has its verdict after a few pairs


def numbers(tmp_path, name, values):
    """A command that prints these numbers one after the other, run by run, as a machine would
    vary."""
    place = tmp_path / name
    place.write_text("\n".join(map(str, values)))
    code = f"p='{place}';t=open(p).read().split();open(p,'w').write(' '.join(t[1:]+t[:1]));print('speed',t[0],'x/s')"
    (tmp_path / f"{name}.py").write_text(code)
    return f"{sys.executable} -S -E {tmp_path / name}.py"


@pytest.mark.parametrize(
    ("factor", "rate", "verdict", "status"),
    [
        (1.1, [], "slower", 1),
        (1.1, ["--rate"], "faster", 0),
        (0.9, [], "faster", 0),
        (1.0, [], "same", 0),
    ],
)
def test_a_number_that_commands_print_is_compared(factor, rate, verdict, status, tmp_path, capsys):
    old, new = (
        numbers(tmp_path, *each)
        for each in (("a", [100, 101]), ("b", [100 * factor, 101 * factor]))
    )
    words = ["gate", "--json", *QUICK, "--reads", r"speed (\S+)", *rate, old, new]
    assert main(words) == status
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == verdict
    assert (told["old"], told["unit"]) == (pytest.approx(100, rel=0.02), "")
    assert told["new"] == pytest.approx(100 * factor, rel=0.02)


def test_wall_times_are_told_in_a_sentence(capsys):
    assert main(["gate", *QUICK, "true", "sleep 0.2"]) == 1
    assert capsys.readouterr().out.startswith("slower: ")


def test_cpu_time_leaves_out_what_a_command_waits_for(capsys):
    busy = f"{sys.executable} -S -E -c 'sum(range(3000000))'"
    assert (
        main(
            [
                "gate",
                *QUICK,
                "--cpu-time",
                "--json",
                f"sleep 0.3; {busy}",
                f"{busy}; {busy}",
            ]
        )
        == 1
    )
    assert json.loads(capsys.readouterr().out)["ratio"] == pytest.approx(2, rel=0.4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["true", "echo no room >&2; exit 3"],
            "`echo no room >&2; exit 3`: ended with exit status 3: no room",
        ),
        (["true", "kill -9 $$"], "`kill -9 $$`: was ended by signal 9: it said nothing"),
        (
            ["--minutes", "0.005", "sleep 60 & sleep 60", "true"],
            "was still running after 0.3 s, and was ended.",
        ),
        (
            ["--reads", "speed", "true", "true"],
            "`true`: with --reads=speed it prints nothing that it matches.",
        ),
        (["--reads", ".+", "echo fast", "true"], "it reads 'fast', which is no number above 0."),
        (["--reads", "(", "true", "true"], "--reads=(: no regular expression: "),
        (["--rate", "true", "true"], "--rate: says how --reads reads"),
        (
            ["--cpu-time", "--reads", "a", "true", "true"],
            "--cpu-time and --reads: each says what is compared",
        ),
        (["true"], "commands: 1; give two, each in quotes, or --base COMMIT -- COMMAND."),
        (["--reads", "a|()", "echo b", "true"], "it reads '', which is no number above 0."),
        (
            ["--base", "no-such-commit", "--", "true"],
            "--base=no-such-commit: no folder of a checkout, and git says: ",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(words, said, capsys):
    assert main(["gate", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_a_rate_is_told_as_it_was_printed(tmp_path, capsys):
    old, new = (numbers(tmp_path, *each) for each in (("a", [100, 101]), ("b", [150, 151])))
    assert main(["gate", *QUICK, "--reads", r"speed (\S+)", "--rate", old, new]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("faster: 100 → 150, +50 %")
    assert said[1].startswith("95 % interval +")


def test_a_number_on_the_standard_error_counts_too(capsys):
    words = [
        "gate",
        *QUICK,
        "--json",
        "--reads",
        r"took (\S+)",
        "echo start; echo took 2 s >&2",
        "echo took 3 s >&2",
    ]
    assert main(words) == 1
    assert json.loads(capsys.readouterr().out)["ratio"] == pytest.approx(1.5)


@pytest.mark.parametrize("minutes", ["0", "-1", "soon"])
def test_minutes_are_above_0(minutes, capsys):
    assert main(["gate", "--minutes", minutes, "true", "true"]) == 2
    assert "Invalid value for '--minutes'" in capsys.readouterr().err


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of two commits, whose command in `bench/` prints 100 and then 120; and a place
    for its worktrees."""
    for key in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(gate.tempfile, "tempdir", None)
    folder = tmp_path / "code/bench"
    folder.mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(folder)
    subprocess.run(["git", "init", "-q"], cwd=folder.parent, check=True)
    for number in (100, 120):
        (folder / "value").write_text(f"{number}\n")
        commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", str(number)]
        subprocess.run(["git", "add", "."], check=True)
        subprocess.run(commit, check=True)
    yield folder
    gate.tempfile.tempdir = None


def test_a_commit_is_compared_in_a_worktree_that_goes_again(repository, tmp_path, capsys):
    words = ["gate", *QUICK, "--reads", r"\d+", "--json", "--base", "HEAD~1", "--", "cat", "value"]
    assert main(words) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["old"], told["new"], round(told["ratio"], 2)) == (100, 120, 1.2)
    assert main(["gate", *QUICK, "--base", "HEAD~1", "--", "false"]) == 2
    assert list((tmp_path / "tmp").iterdir()) == []
    listed = subprocess.run(
        ["git", "worktree", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert len(listed.splitlines()) == 1


def test_a_gate_that_is_ended_leaves_no_worktree_and_no_command(repository, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(gate.__file__).parents[2])}
    words = [
        sys.executable,
        "-m",
        "mfulab",
        "gate",
        "--base",
        "HEAD~1",
        "--",
        f"echo $$ > {tmp_path}/pid; sleep 600",
    ]
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as running:
        pid = pid_in(tmp_path / "pid")
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 128 + signal.SIGTERM
    assert list((tmp_path / "tmp").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def is_running(group):
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


def listed_worktrees():
    command = ["git", "worktree", "list"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("inner", ["sleep 600", "(sleep 601; echo) | cat"])
def test_a_gate_that_is_killed_leaves_no_command_and_the_next_start_no_worktree(
    repository, tmp_path, inner
):
    environment = os.environ | {"PYTHONPATH": str(Path(gate.__file__).parents[2])}
    command = f"echo $$ > {tmp_path}/pid; {inner}; true"
    words = [sys.executable, "-m", "mfulab", "gate", "--base", "HEAD~1", "--", command]
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as running:
        group = pid_in(tmp_path / "pid")
        running.kill()
    until(lambda: not is_running(group))
    assert len(listed_worktrees()) == 2
    assert main(["gate", *QUICK, "--base", "HEAD~1", "--", "false"]) == 2
    assert len(listed_worktrees()) == 1
    assert list((tmp_path / "tmp").iterdir()) == []


def test_markdown_names_both_commands_the_interval_and_the_power(tmp_path, capsys):
    old, new = (numbers(tmp_path, *each) for each in (("a", [100, 101]), ("b", [110, 111])))
    words = [*QUICK, "--reads", r"speed (\S+)", "--format", "markdown"]
    assert main(["gate", *words, old, new]) == 1
    said = capsys.readouterr().out
    assert said.startswith("### ❌ slower: +")
    assert said.count("\n|") == 4
    assert f"| before | `{old}` | 100" in said
    assert "would have been found" in said


def test_a_verdict_without_an_interval_has_no_power_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr("mfulab.timing.paired.MOST_PAIRS", 1)
    assert main(["gate", *QUICK, "sleep 0.01", "sleep 0.01"]) == 3
    assert "no slowdown of any size would have been found" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_a_verdict_is_told_in_the_terminals_language(form, monkeypatch, capsys):
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    monkeypatch.setattr("mfulab.timing.paired.MOST_PAIRS", 1)
    assert main(["gate", *QUICK, "--format", form, "true", "sleep 0.2"]) == 3
    told = capsys.readouterr().out
    korean = Texts("ko", "gate")
    assert korean.name("compared", "ambiguous") in told
    assert korean("finds_none") in told
    assert say(Said("one_pair_no_interval"), "ko") in told


def test_json_keeps_its_english_in_every_language(monkeypatch, capsys):
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    monkeypatch.setattr("mfulab.timing.paired.MOST_PAIRS", 1)
    assert main(["gate", *QUICK, "--json", "true", "sleep 0.2"]) == 3
    row = json.loads(capsys.readouterr().out)
    assert (row["verdict"], row["pairs"]) == ("ambiguous", 1)
    assert row["because"] == str(Said("one_pair_no_interval"))


def test_progress_is_said_off_a_terminal_too(monkeypatch, capsys):
    monkeypatch.setattr(gate_text, "SAID_EVERY_S", 0.0)
    assert main(["gate", *QUICK, "true", "sleep 0.2"]) == 1
    assert "round 1 of at most" in capsys.readouterr().err
