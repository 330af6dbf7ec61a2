"""Tables of peaks in frameworks' sources: read, never run."""

import pytest
from peaks_audit import Library, audit, in_bf16
from peer_tables import PEERS, Peer, Table, ask, tables

CHAIN = """
def peak(device_name: str) -> float:
    try:
        device_name = " ".join(open("/dev/null")) or device_name
    except OSError as error:
        print(error)
    half = 0.5
    if "L4" in device_name and "S" not in device_name:
        return 242e12 * half
    elif device_name.lower().startswith("nvidia h100"):
        if "NVL" in device_name:
            return int(1671e12 * half)
        return 989e12
    elif "XPU" in device_name:
        return 512 * torch.xpu.units()
    else:
        return 312e12
"""
FIELD = """
class Monitor:
    def begin(self):
        if self.flops is None and self.device.type == "cuda":
            device_name = torch.cuda.get_device_name(self.device)
            if "B200" in device_name:
                self.flops = int(4.5e15 * 0.5)
"""
LISTED = """
PEAKS = (("H100 NVL", {"bfloat16": 835e12}), ("H100", {"bfloat16": 989e12}), ("T4", {"float16": 65e12}))
def peak(device_name, dtype):
    for word, peaks in PEAKS:
        if word in device_name:
            return peaks.get(dtype)
"""
ARGUMENT = "def mfu(tokens, peak_flops: float = 989.5e12): return tokens / peak_flops"


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 312),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H100 PCIe", 989),
        ("XPU", None),
        ("anything", 312),
    ],
)
def test_conditions_on_a_name_are_followed(device, expected):
    found = Table(CHAIN, Peer("a/b", "c.py", "peak")).peak(device)
    assert found == (expected and pytest.approx(expected))


def test_a_field_and_an_argument_are_read():
    field = Table(FIELD, Peer("a/b", "c.py", "begin", peak="flops"))
    assert field.peak("NVIDIA B200") == 2250
    assert field.peak("NVIDIA L4") is None
    assert Table(ARGUMENT, Peer("a/b", "c.py", "mfu", peak="peak_flops")).peak("any") == 989.5


@pytest.mark.parametrize(
    ("device", "expected"),
    [("NVIDIA H100 NVL", 835), ("NVIDIA H100 80GB HBM3", 989), ("Tesla T4", None), ("H1000", None)],
)
def test_a_listed_table_is_read_by_its_words(device, expected):
    assert Table(LISTED, Peer("a/b", "c.py", "peak", listed="PEAKS")).peak(device) == expected


def test_a_table_that_has_gone_is_said(tmp_path):
    with pytest.raises(LookupError, match="0 functions peak"):
        Table("x = 1", Peer("a/b", "c.py", "peak"))
    with pytest.raises(LookupError, match="no other any more"):
        Table(ARGUMENT, Peer("a/b", "c.py", "mfu", peak="other"))
    with pytest.raises(LookupError, match="no OTHER any more"):
        Table(LISTED, Peer("a/b", "c.py", "peak", listed="OTHER"))
    assert tables(tmp_path) == {}
    (tmp_path / "nanogpt").mkdir()
    with pytest.raises(LookupError, match=r"nanogpt: model\.py"):
        tables(tmp_path)
    assert set(PEERS) >= {"torchtitan", "trl", "olmo_core", "nanogpt"}


def test_nothing_of_a_source_is_run():
    source = "raise SystemExit('run')\n" + ARGUMENT
    assert Table(source, Peer("a/b", "c.py", "mfu", peak="peak_flops")).peak("any") == 989.5


def test_a_table_is_audited_like_a_library():
    table = Table(CHAIN, Peer("a/b", "c.py", "peak"))
    figures = {figure.asked: figure for figure in in_bf16(audit(Library(ask(table))))}
    assert figures["NVIDIA L4"].verdict == "agreed"
    assert figures["NVIDIA L40S"].verdict == "guessed"
    assert figures["NVIDIA H100 PCIe"].verdict == "another device"
    assert all(figure.precision in ("bf16", "") for figure in figures.values())
