"""Windows of a device that lags: periods of equal work, whatever the file lacks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trace_events import event, launched, operator, steps, trace, write

from mfulab.measurements.read_trace.reader import read_file


def row(tmp_path, *events):
    (found,) = read_file(write(tmp_path / "t.json", trace(*events)))
    return found.row


def test_launches_that_the_file_lacks_move_no_window(tmp_path):
    """Kernels without a launch inside both steps are no work of earlier ones: the host's marks bound the steps."""
    kernels = [
        [event("kernel", "flash_fwd", begin + 50, 1200), *launched("gemm", begin + 1300, begin + 1400, 300, number)]
        for number, begin in ((1, 10_000), (2, 12_000))
    ]
    found = row(tmp_path, steps((10_000, 12_000), (12_000, 14_000)), *kernels)
    assert (found.time_s, found.kernel_busy_percent) == (pytest.approx(2e-3), pytest.approx(75))


def test_of_one_step_too_where_its_own_work_did_not_queue_behind_them(tmp_path):
    flash = event("kernel", "flash_fwd", 10_050, 1200)
    found = row(tmp_path, steps((10_000, 12_000)), flash, launched("gemm", 11_300, 11_400, 300, 1))
    assert (found.time_s, found.kernel_busy_percent) == (pytest.approx(2e-3), pytest.approx(75))
    # Launched before the other had ended, it waited for earlier work.
    found = row(tmp_path, steps((10_000, 12_000)), flash, launched("gemm", 10_100, 11_400, 800, 1))
    assert found.time_s == pytest.approx(950e-6)


@pytest.mark.parametrize("left", ["launched", "without launches", "not recorded"])
@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 4), period=st.integers(3000, 9000), ahead=st.booleans())
def test_a_copy_that_runs_ahead_does_not_hide_the_lag(tmp_path_factory, left, count, period, ahead):
    """The device is 1.5 periods behind the host, and copies each step's input at once on a stream of its own."""
    lag, begin = 3 * period // 2, 100_000
    marks = [(begin + period * n, begin + period * (n + 1)) for n in range(count)]
    old = {
        "launched": launched("k", begin - 9, begin - 5, lag + 5, 900),
        "without launches": event("kernel", "k", begin - 5, lag + 5),
        "not recorded": [],
    }[left]
    own = [launched("k", at + 20, at + lag, period, number) for number, (at, _) in enumerate(marks, start=1)]
    copies = [
        [
            event("cuda_runtime", "cudaMemcpyAsync", at + 10, 2, 1, correlation=100 + number),
            event("gpu_memcpy", "Memcpy HtoD", at + 15, 30, 9, correlation=100 + number, device=0, stream=9),
        ]
        for number, (at, _) in enumerate(marks if ahead else ())
    ]
    found = row(tmp_path_factory.mktemp("t"), steps(*marks), old, *own, *copies)
    assert found.time_s == pytest.approx(1e-6 * period)
    assert found.kernel_busy_percent == pytest.approx(100)


@pytest.mark.parametrize(("others", "floor_ns"), [([], 5_000), ([launched("k", 9, 1060, 2, 2)], 2_000)])
def test_one_long_product_is_not_bound_by_its_launch(tmp_path, others, floor_ns):
    """The floor is the shortest kernel of the trace, and at most what an empty one takes."""
    mm = operator("aten::mm", 0, 5, [[4096, 4096], [4096, 4096]], "c10::BFloat16")
    content = trace(steps((0, 1100)), mm, launched("gemm", 1, 50, 1000, 1), *others)
    (found,) = read_file(write(tmp_path / "t.json", content))
    assert {one.launch_ns for one in found.analysis.operators if one.kernel_ns} == {floor_ns}
