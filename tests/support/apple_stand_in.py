"""Emulates a Mac's GPU: fake `ioreg` and `torch.mps`, with computations on the CPU."""

import platform
import plistlib
import subprocess
import sys
import time
import types
from dataclasses import replace

import torch

from mfulab import device
from mfulab.device import cpu, identity, system
from mfulab.device.vendors import apple

# Statistics as printed by ioreg(8) on an M-series Mac.
TOLD = {
    "Device Utilization %": 87,
    "Renderer Utilization %": 80,
    "Tiler Utilization %": 12,
    "In use system memory": 1_234_567_890,
    "Alloc system memory": 4_000_000_000,
    "recoveryCount": 0,
}


class Event:
    """Replaces torch.mps.event.Event with the host's clock, as the CPU has finished when a call
    returns."""

    def __init__(self, enable_timing=False):
        assert enable_timing

    def record(self):
        self.at_s = time.perf_counter()

    def synchronize(self):
        """Does nothing."""

    def elapsed_time(self, end):
        return (end.at_s - self.at_s) * 1e3


def mac(monkeypatch, told=TOLD):
    """Emulates a Mac with Apple silicon. If `told` is None, ioreg fails."""

    real = subprocess.run

    def run(command, **options):
        if command[0] != "ioreg":
            return real(command, **options)
        if told is None:
            raise FileNotFoundError("ioreg")
        answer = plistlib.dumps(
            [
                {"IOClass": "AGXAcceleratorG14X"},
                {"PerformanceStatistics": told, "gpu-core-count": 8},
            ]
        )
        return subprocess.CompletedProcess(command, 0, stdout=answer)

    found = replace(cpu.cpu(), name="Apple M2")
    monkeypatch.setattr(system, "IS_MACOS", True)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(cpu, "cpu", lambda: found)


def ioreport(monkeypatch, counted):
    """Installs a fake `zeus_apple_silicon` whose windows measure `counted` mJ of GPU energy. If
    `counted` is an error, its monitor raises it."""
    package = types.ModuleType("zeus_apple_silicon")
    package.windows = []

    class AppleEnergyMonitor:
        def __init__(self):
            if isinstance(counted, Exception):
                raise counted

        def begin_window(self, key):
            package.windows.append(key)

        def end_window(self, key):
            package.windows.remove(key)
            return types.SimpleNamespace(gpu_mj=counted, gpu_sram_mj=None)

    package.AppleEnergyMonitor = AppleEnergyMonitor
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", package)
    return package


def in_place_of_the_cpu(monkeypatch):
    """Makes the CPU pass for Apple's GPU, so that its code runs on CPU tensors."""
    monkeypatch.setattr(device, "NO_GPU", (None, "auto", "meta"))
    monkeypatch.setattr(apple.Apple, "KIND", "cpu")
    monkeypatch.setattr(identity, "resolve", lambda _: "cpu")
    monkeypatch.setattr(torch.mps, "Event", Event)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: None)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 5_000_000)
    monkeypatch.setattr(torch, "get_device_module", lambda _: torch.mps)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
