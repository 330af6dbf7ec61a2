import pytest
import torch
import yaml
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import TimingConfig
from mfulab.core.language import verdicts
from mfulab.device.vendors import NoDeviceError
from mfulab.kernels.base import Launch, MatmulKernel
from mfulab.lab.runtime.run import _message
from mfulab.measurements.bench_matmul import BenchMatmulConfig, MatmulRow
from mfulab.measurements.bench_matmul.measure import _Bench, _fill_times, measure
from mfulab.mfu.flags import matmul_flags
from mfulab.timing.pace import SHORT as SHORT_PACE
from mfulab.timing.repetitions import Repetition

OF_THE_RUN = ("measured_s", "process_s", "probe_s")  # seconds that are no speed
QUICK = {"windows": 2, "window_time_s": 0.01, "warm_up_time_s": 0.01}


class Halved(MatmulKernel):
    """Wrong on purpose."""

    family, rung, adds = "test", 0, "nothing"
    devices, precisions = ("cpu",), ("fp32",)

    def run(self, *operands, launch: Launch) -> None:
        a, b, c = operands
        torch.matmul(a, b, out=c).mul_(0.5)


class WrongLater(MatmulKernel):
    """Right at the first call only."""

    family, rung, adds = "test", 0, "nothing"
    devices, precisions = ("cpu",), ("fp32",)
    calls = 0

    def run(self, *operands, launch: Launch) -> None:
        a, b, c = operands
        torch.matmul(a, b, out=c)
        self.calls += 1
        if self.calls > 1:
            c[..., 0] += 1


class Remembering(MatmulKernel):
    """Multiplies once and gives the same answer ever after."""

    family, rung, adds = "test", 0, "nothing"
    devices, precisions = ("cpu",), ("fp32",)
    kept = None

    def run(self, *operands, launch: Launch) -> None:
        a, b, c = operands
        if self.kept is None:
            self.kept = torch.matmul(a, b)
        c.copy_(self.kept)


class Idle(Remembering):
    """Finds its result in C already."""

    def run(self, *operands, launch: Launch) -> None:
        if self.kept is None:
            super().run(*operands, launch=launch)


class OutOfBounds(MatmulKernel):
    """Fails as torch tells that a kernel failed."""

    family, rung, adds = "test", 0, "nothing"
    devices, precisions = ("cpu",), ("fp32",)

    def launch(self, shape) -> Launch:
        return Launch((256,), (8, 4))

    def run(self, *operands, launch: Launch) -> None:
        raise RuntimeError(
            "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in the manual."
        )


class Unpacked(MatmulKernel):
    """Imports a package that is nowhere in its first call."""

    family, rung, adds = "test", 0, "nothing"
    devices, precisions = ("cpu",), ("fp32",)

    def run(self, *operands, launch: Launch) -> None:
        import a_package_that_is_nowhere  # noqa: F401


def config(target, size="33x65x17", precision="fp32", dtype="float32", device="cpu", **kernel):
    return BenchMatmulConfig(
        kernel={"name": "mine", "_target_": target, **kernel},
        size=size,
        precision={"name": precision, "dtype": dtype},
        device={"name": device, "type": device, "threads": 2},
        timing=QUICK,
        first_calls=3,
    )


@pytest.mark.parametrize("size", few(["2x9x8x7", "33x65x17", "64"]))
def test_a_row_has_times_errors_and_the_reference(tmp_path, size):
    measured = measure(config("mfulab.kernels.numba_cpu_naive.NumbaCpuNaive", size), tmp_path)
    row = measured.row
    assert isinstance(row, MatmulRow)
    assert row.status == "ok"
    assert row.effective_precision == "fp32"
    for name in (
        "time_s",
        "cold_time_s",
        "first_call_s",
        "end_to_end_s",
        "reference_time_s",
        "allocation_s",
    ):
        assert getattr(row, name) > 0, name
    assert row.time_s <= row.median_time_s == row.hot_time_s
    # The first call is a third of the mean's weight, and two more come on top.
    assert row.first_calls == 3
    assert row.first_calls_mean_s > row.first_call_s / 3
    assert row.flops == 2 * row.batch * row.m * row.n * row.k
    assert row.relative_error <= row.tolerance
    assert row.threads == 2
    assert row.host_to_device_s is None  # nothing is transferred on a CPU
    assert row.registers is None
    assert {sample["temperature"] for sample in measured.samples} == {"hot", "cold"}
    found = {sample["implementation"] for sample in measured.samples}
    assert found == {"mine", f"reference: {row.reference_name}"}


@pytest.mark.parametrize("kind", [Halved, WrongLater, Remembering, Idle])
def test_a_wrong_result_has_no_speed(tmp_path, kind):
    row = measure(config(f"{__name__}.{kind.__name__}"), tmp_path).row
    assert row.status == "incorrect"
    assert "relative error" in verdicts.message(row.message)
    assert row.relative_error > row.tolerance
    times = [
        name for name in MatmulRow.model_fields if name.endswith("_s") and name not in OF_THE_RUN
    ]
    assert [name for name in times if getattr(row, name) is not None] == []


def test_a_gpu_kernel_on_a_cpu_is_unsupported(tmp_path):
    with pytest.raises(UnsupportedError, match="no int8"):
        measure(config("mfulab.kernels.cpu_numpy.Numpy", precision="int8", dtype="int8"), tmp_path)


def test_a_cuda_error_is_told_by_its_name_with_the_launch_configuration(tmp_path):
    with pytest.raises(RuntimeError) as raised:
        measure(config(f"{__name__}.OutOfBounds"), tmp_path)
    assert verdicts.message(_message(raised.value)) == (
        "RuntimeError: CUDA error: an illegal memory access was encountered; "
        "cudaErrorIllegalAddress, grid=(8, 4) block=(256,) shared=0 B"
    )


def test_a_missing_package_is_unsupported(tmp_path):
    with pytest.raises(UnsupportedError, match="needs the package no_such_package"):
        measure(config("no_such_package.Kernel"), tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_cuda_without_a_gpu_is_unsupported(tmp_path):
    with pytest.raises(NoDeviceError, match="choose device=cpu"):
        measure(config("mfulab.kernels.torch_matmul.Torch", device="cuda"), tmp_path)


def test_a_package_missing_at_the_first_call_makes_the_run_unsupported(tmp_path):
    with pytest.raises(UnsupportedError, match="needs the package a_package_that_is_nowhere"):
        measure(config(f"{__name__}.Unpacked"), tmp_path)


SHORT = SHORT_PACE["cuda"]["bench_matmul"]


@pytest.mark.parametrize(
    ("timing", "asked", "times_transfers", "is_short"),
    [(SHORT, True, True, True), (SHORT, False, False, True), ({}, False, True, False)],
    ids=["short and asked", "short", "a GPU's own"],
)
def test_transfers_are_timed_at_a_short_pace_where_asked(timing, asked, times_transfers, is_short):
    asking = config("mfulab.kernels.torch_matmul.Torch").model_copy(
        update={"timing": TimingConfig(**timing), "transfers": asked}
    )
    bench = _Bench(asking, "cuda", None, None, None, None)
    assert (bench.times_transfers, bench.is_short) == (times_transfers, is_short)


@pytest.mark.parametrize("experiment", ["transfers", "seminar_gpu"])
def test_experiments_on_copies_ask_for_them(experiment):
    asked = yaml.safe_load((ROOT / f"config/experiment/{experiment}.yaml").read_text())
    assert asked["transfers"] is True


@pytest.mark.parametrize(("own", "beside", "is_marked"), [(1750, 1400, True), (1750, 1730, False)])
def test_a_share_of_unlike_clocks_is_marked(own, beside, is_marked):
    found = [
        Repetition(name, "hot", round_, 1e-3, 100, mhz)
        for round_ in range(3)
        for name, mhz in (("mine", own), ("reference: torch", beside))
    ]
    row = MatmulRow(kernel="mine", reference_name="torch", threads=None)
    _fill_times(row, found, "mine")
    assert (row.clock_mhz, row.reference_clock_mhz) == (own, beside)
    assert ("unlike_clocks" in (matmul_flags(row.model_dump()) or "")) == is_marked
