"""GPUs that the CUDA driver lists. A separate process asks, because a process that has initialised
the driver cannot fork users of it."""

import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from mfulab.core.json_text import parse_json

LIBRARY = "libcuda.so.1"
PATIENCE_S = 60.0  # a driver that is not in use takes seconds per GPU to start
ORDERS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
SMS = 16
MAJOR = 75
MINOR = 76  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, …COMPUTE_CAPABILITY_…
_ASK = f"""
import ctypes, json, uuid
cuda, number, size = ctypes.CDLL("{LIBRARY}"), ctypes.c_int(), ctypes.c_size_t()
def ask(name, *arguments):
    if error := getattr(cuda, name)(*arguments):
        raise SystemExit(f"{{name}}: CUDA error {{error}}")
def told(name, *arguments):
    ask(name, ctypes.byref(number), *arguments)
    return number.value
ask("cuInit", 0)
version, found = told("cuDriverGetVersion"), []
for device in [told("cuDeviceGet", place) for place in range(told("cuDeviceGetCount"))]:
    name, id = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    ask("cuDeviceGetName", name, 256, device)
    ask("cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid", id, device)
    ask("cuDeviceTotalMem_v2", ctypes.byref(size), device)
    called = name.value.decode()
    found.append({{
        "name": called, "uuid": ("MIG-" if " MIG " in called else "GPU-") + str(uuid.UUID(bytes=id.raw)),
        "memory_bytes": size.value, "sms": told("cuDeviceGetAttribute", {SMS}, device),
        "capability": [told("cuDeviceGetAttribute", {MAJOR}, device), told("cuDeviceGetAttribute", {MINOR}, device)],
    }})
print(json.dumps([version, found]))
"""


def devices(environment: Mapping[str, str] = os.environ) -> list[dict[str, Any]]:
    """Name, UUID, memory, SMs and compute capability of each device. Empty if CUDA does not
    answer."""
    return _asked(*(environment.get(name) for name in ORDERS))[1]


def version() -> int | None:
    """Newest CUDA version that the driver supports, such as 12040 for 12.4. None if CUDA does not
    answer."""
    return _asked(*(os.environ.get(name) for name in ORDERS))[0]


@functools.cache
def _asked(*values: str | None) -> tuple[int | None, list[dict[str, Any]]]:
    try:
        ctypes.CDLL(LIBRARY)  # raises OSError on machines without CUDA
        chosen = {
            name: value for name, value in zip(ORDERS, values, strict=True) if value is not None
        }
        environment = {
            name: value for name, value in os.environ.items() if name not in ORDERS
        } | chosen
        command = [sys.executable, "-S", "-E", "-c", _ASK]
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        number, devices = parse_json(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None, []
    return number, devices
