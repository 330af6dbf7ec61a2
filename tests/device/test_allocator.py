"""The allocator's states by their page faults, each in a process of its own."""

import json
import subprocess
import sys

import pytest
import torch

from mfulab.device import allocator

GLIBC = sys.platform == "linux" and hasattr(allocator.ctypes.CDLL(None), "gnu_get_libc_version")
# A step that makes and frees four blocks of 6.4 MB: two are the edge, at which glibc trims in some
# steps only.
STEP = """
import json, statistics, torch
from mfulab.device import allocator
from mfulab.timing.probe import Probe
torch.set_num_threads(1)

def block():
    return torch.empty(6_400_000, dtype=torch.uint8).fill_(1)

def step():
    blocks = [block() for _ in range(4)]
    del blocks

def faults():
    counts = []
    for _ in range(4):
        before = allocator.page_faults()
        step()
        counts.append(allocator.page_faults() - before)
    return statistics.median_low(counts[1:])

"""


def told(code: str) -> dict[str, float]:
    """What a new process prints, which has glibc's defaults whatever this one has set."""
    clean = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", STEP + code], env=clean, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not GLIBC, reason="another C library has other states")
def test_the_knife_edge_is_in_the_default_state_alone():
    """Twice the largest mapping freed, 12.8 MB, is where the top of the heap goes back; then it is
    64 MiB."""
    found = told(
        "told = {'default': faults()}\n"
        "allocator.settle()\n"
        "told['declared'] = faults()\n"
        "block = lambda: torch.empty(40_000_000, dtype=torch.uint8).fill_(1)\n"
        "told['large'] = faults()\n"
        "with allocator.kept_memory() as kept:\n"
        "    told['kept'] = faults() if kept else 0\n"
        "told['after'] = faults()\n"
        "print(json.dumps(told))"
    )
    assert found["default"] > 1000
    assert found["declared"] < 100
    assert found["large"] > 1000, "beyond 32 MiB a block is mapped in the declared state too"
    assert found["kept"] < 100
    assert found["after"] > 1000, "the declared state is back"


@pytest.mark.slow
def test_the_probe_changes_no_step_s_page_faults():
    found = told(
        "allocator.settle()\n"
        "probe = Probe(torch.device('cpu'))\n"
        "probe()\n"
        "faults()\n"
        "told, plain = {'without': faults()}, step\n"
        "def step():\n"
        "    plain()\n"
        "    probe.again()\n"
        "told['with'] = faults()\n"
        "print(json.dumps(told))"
    )
    assert abs(found["with"] - found["without"]) < 100


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(allocator.ctypes.CDLL(None), "mallinfo2"), reason="glibc tells since 2.33"
)
def test_the_probe_lies_outside_of_the_heap():
    """Its 16 MiB of copies and its matmul's operands; what remains is the libraries' own: 2 to 5
    MB, by CPU."""
    found = told(
        "import ctypes\n"
        "names = 'arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost'.split()\n"
        "Info = type('Info', (ctypes.Structure,), {'_fields_': [(name, ctypes.c_size_t) for name in names]})\n"
        "library = ctypes.CDLL(None)\n"
        "library.mallinfo2.restype = Info\n"
        "def held():\n"
        "    info = library.mallinfo2()\n"
        "    return info.arena + info.hblkhd\n"
        "before = held()\n"
        "probe = Probe(torch.device('cpu'))\n"
        "made = held()\n"
        "probe()\n"
        "print(json.dumps({'made': made - before, 'asked': held() - made}))"
    )
    assert found["made"] < 256 << 10
    assert found["asked"] < 8 << 20


def test_what_a_mapping_holds_is_no_part_of_the_heap():
    made = allocator.mapped(3, 5, dtype=torch.float64)
    assert (made.shape, made.dtype, made.sum()) == ((3, 5), torch.float64, 15)
    assert made.data_ptr() % 4096 == 0


def test_a_page_fault_takes_some_time():
    one = allocator.page_fault_s()
    assert one is None or 0 < one < 1e-3


def test_without_mallopt_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    with allocator.kept_memory() as kept:
        assert not kept
