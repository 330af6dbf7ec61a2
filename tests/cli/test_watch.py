"""`mfulab watch` on this CPU for real, and on a stand-in GPU."""

import io
import os

import pytest
from rich.console import Console
from support.nvml_stand_in import Gpu, StandIn

from mfulab.cli import watch
from mfulab.hardware import nvml


def console() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=False)


@pytest.fixture
def gpu(monkeypatch):
    def make(made: Gpu) -> StandIn:
        return StandIn(made).install(monkeypatch)

    yield make
    nvml.why_absent.cache_clear()


@pytest.mark.parametrize("arguments", [[], ["--pid", str(os.getpid())]])
def test_this_cpu(arguments):
    shown = console()
    assert watch.main(["--device", "cpu", "--interval", "0.05", "--count", "2", *arguments], shown) == 0
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
    assert "SM active" in shown.file.getvalue()


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
        (["--device", "gpu"], "invalid choice"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        watch.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_no_gpu(monkeypatch, capsys):
    monkeypatch.setattr(nvml, "why_absent", lambda: "no NVIDIA driver answers")
    with pytest.raises(SystemExit):
        watch.main(["--device", "cuda"])
    assert "no NVIDIA driver answers" in capsys.readouterr().err


def test_the_command_says_how_it_is_used(capsys):
    from mfulab.__main__ import main

    assert main(["--help"]) == 0
    assert "mfulab watch" in capsys.readouterr().out
    assert main(["wach"]) == 2
    assert "usage" in capsys.readouterr().err
    assert main(["watch", "--device", "cpu", "--interval", "0.05", "--count", "1"]) == 0
