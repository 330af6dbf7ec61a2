"""Real trainings on two ranks, killed and resumed: the journal's sums against a stopwatch."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import killed_job
from support.processes import HANGS_S
from support.workflow_copy import ROOT

from mfulab.cli.main import main
from mfulab.loop.goodput.ladder import job_of

SUPPORT = ROOT / "tests"


def port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def start(kind, folder):
    common = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port(),
        "OMP_NUM_THREADS": "1",
    }
    common |= {"PYTHONPATH": str(SUPPORT), "GLOO_SOCKET_IFNAME": "lo", "NODE_RANK": "0"}
    command = [sys.executable, "-m", "support.killed_job", kind, str(folder)]
    return [
        subprocess.Popen(
            command,
            env={**common, "RANK": rank, "LOCAL_RANK": rank},
            stderr=(folder / f"{rank}.log").open("a"),
        )
        for rank in ("0", "1")
    ]


def lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"end step") for file in (folder / "watch").glob("0-*"))


def run(kind: str, folder: Path, kills: int, seed: int = 0) -> dict[str, float]:
    """Runs to the end, killed so often; when it began, and the seconds between attempts."""
    chance, began, dead = random.Random(seed), time.perf_counter(), 0.0
    for attempt in range(kills + 1):
        ranks = start(kind, folder)
        if attempt == kills:
            assert [rank.wait(HANGS_S) for rank in ranks] == [0, 0], (folder / "0.log").read_text()[
                -2000:
            ]
            break
        enough, limit = lines(folder) + chance.randint(15, 60), time.monotonic() + HANGS_S
        while lines(folder) < enough and time.monotonic() < limit and ranks[0].poll() is None:
            time.sleep(0.005)
        first, second = chance.sample(ranks, 2)
        first.send_signal(signal.SIGKILL)
        second.send_signal(signal.SIGKILL)
        killed = time.perf_counter()
        for rank in ranks:
            rank.wait()
        time.sleep(chance.uniform(0.2, 1.0))
        dead += time.perf_counter() - killed
    return {"began": began, "down": dead}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["huggingface", "lightning"])
def test_a_job_killed_three_times(kind, tmp_path, capsys):
    seen = run(kind, tmp_path, kills=3)
    job, own = job_of(tmp_path / "job"), killed_job.read(tmp_path / "watch")
    row, spans = job.row(), job.spans
    assert sum(spans.values()) == 2 * job.wall
    assert (row["ranks"], row["attempts"]) == (2, 4)
    assert row["kept_steps"] == killed_job.STEPS
    print(kind, json.dumps({"outside": {**seen, **own}, "journal": row}))
    # what the interpreter does after the last line is in no journal
    wall_s = own["exit"] - seen["began"]
    assert row["wall_s"] == pytest.approx(wall_s, rel=0.01)
    found = (spans["step"] + spans["lost"] + spans["first_step"]) / 1e9
    assert found == pytest.approx(own["step"], rel=0.01)
    assert row["down_s"] == pytest.approx(seen["down"], abs=0.01 * wall_s)
    assert row["mfu_percent"] is not None
    assert row["evaluation_s" if kind == "huggingface" else "checkpoint_s"] > 0
    assert main(["goodput", str(tmp_path / "job"), "--figure", str(tmp_path / "job.png")]) == 0
    assert "steps run again" in capsys.readouterr().out
