"""CPU energy from RAPL trees as machines show them."""

from pathlib import Path

import pytest

from mfulab.device.samplers.cpu_sampler import rapl_sampler


@pytest.fixture
def tree(tmp_path: Path):
    def write(**counters: int) -> Path:
        for domain, value in counters.items():
            folder = tmp_path / domain.replace("rapl", "intel-rapl").replace("_", ":")
            folder.mkdir()
            add(folder, value)
            (folder / "max_energy_range_uj").write_text("1000000000\n")
        return tmp_path

    return write


def run(root: Path, change) -> dict:
    moments = iter([10.0, 12.0])
    sampler = rapl_sampler(root, lambda: next(moments))
    sampler.start()
    change()
    return sampler.stop()


def add(path: Path, value: int) -> None:
    (path / "energy_uj").write_text(f"{value}\n")


def test_packages_add_up_and_their_parts_do_not(tree):
    root = tree(rapl_0=1_000_000, rapl_1=5_000_000, rapl_0_0=7)

    def change() -> None:
        add(root / "intel-rapl:0", 101_000_000)
        add(root / "intel-rapl:1", 65_000_000)
        add(root / "intel-rapl:0:0", 90_000_000)

    readings = run(root, change)
    assert readings["window_energy_j"].value == pytest.approx(160)
    assert readings["power_w"].value == pytest.approx(80)


def test_a_counter_that_wraps(tree):
    root = tree(rapl_0=990_000_000)
    found = run(root, lambda: add(root / "intel-rapl:0", 10_000_000))["window_energy_j"].value
    assert found == pytest.approx(20)


def test_a_virtual_machine_has_none(tmp_path):
    readings = run(tmp_path, lambda: None)
    assert {reading.value for reading in readings.values()} == {None}
    assert readings["window_energy_j"].reason.key == "no_rapl"


def test_a_counter_that_may_not_be_read(tree):
    root = tree(rapl_0=1)
    (root / "intel-rapl:0" / "energy_uj").unlink()
    (root / "intel-rapl:0" / "energy_uj").mkdir()
    assert run(root, lambda: None)["power_w"].reason.key == "root_alone_since"


@pytest.mark.parametrize(
    "names", [("psys", "package-0"), ("package-0", "psys"), ("package-0-die-0", "psys")]
)
def test_the_platform_s_counter_which_contains_the_packages_adds_nothing(tree, names):
    root = tree(rapl_0=0, rapl_1=0)
    for number, name in enumerate(names):
        (root / f"intel-rapl:{number}" / "name").write_text(f"{name}\n")

    def change() -> None:
        for number, name in enumerate(names):
            add(root / f"intel-rapl:{number}", 800_000_000 if name == "psys" else 500_000_000)

    assert run(root, change)["window_energy_j"].value == pytest.approx(500)


@pytest.mark.parametrize("file", ["energy_uj", "max_energy_range_uj"])
def test_a_counter_that_holds_nothing_is_said(tree, file):
    root = tree(rapl_0=9)
    (root / "intel-rapl:0" / file).write_text("")
    reading = run(root, lambda: None if file == "energy_uj" else add(root / "intel-rapl:0", 5))[
        "power_w"
    ]
    assert reading.value is None
    assert reading.reason.key == "holds_no_number"
    assert str(file) in reading.reason.numbers["path"]
