"""`mfulab watch` on this CPU for real, and on a stand-in GPU."""

import io
import os

import pytest
from rich.console import Console
from support.nvml_stand_in import Gpu, StandIn

from mfulab.cli import watch
from mfulab.cli.main import main
from mfulab.hardware import nvml


def console() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=False)


@pytest.fixture
def gpu(monkeypatch):
    def make(made: Gpu) -> StandIn:
        return StandIn(made).install(monkeypatch)

    yield make
    nvml.why_absent.cache_clear()


@pytest.mark.parametrize("pid", [None, os.getpid()])
def test_this_cpu(pid):
    shown = console()
    assert watch.run("cpu", pid=pid, interval_s=0.05, count=2, console=shown) == 0
    text = shown.file.getvalue()
    assert "utilization" in text
    assert "context switches/s" in text


def test_a_gpu_with_gpm(gpu):
    library = gpu(Gpu(uuid="GPU-1"))

    def wait() -> None:
        library.now += 1.0

    readings, facts = next(watch.frames("cuda", "GPU-1", None, wait, library.time))
    assert (readings["utilization_percent"].value, readings["sm_active_percent"].value) == (100, 90)
    assert "1755 MHz · 600 W · 55 °C · 21.5 GB in use" in facts
    shown = console()
    shown.print(watch.picture("H100", readings, facts))
    assert "active SMs" in shown.file.getvalue()


def test_a_gpu_without_gpm_says_why(gpu):
    gpu(Gpu(uuid="GPU-1", gpm=False, refused={"nvmlDeviceGetUtilizationRates"}))
    readings, facts = next(watch.frames("cuda", "GPU-1", None, lambda: None))
    shown = console()
    shown.print(watch.picture("T4", readings, facts))
    text = shown.file.getvalue()
    assert "finer rungs: this GPU has no GPM" in text
    assert "refused by the driver" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0"], "seconds above 0"),
        (["--pid", "999999999"], "no such process"),
        (["--device", "gpu"], "is not one of"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert main(["watch", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_gpu(monkeypatch, capsys):
    monkeypatch.setattr(nvml, "why_absent", lambda: "no NVIDIA driver answers")
    assert main(["watch", "--device", "cuda"]) == 2
    assert "no NVIDIA driver answers" in capsys.readouterr().err
