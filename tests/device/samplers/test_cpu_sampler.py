"""CPU utilization: the arithmetic by hand, and this very process."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from mfulab.device.samplers.cpu_sampler import Counters, between, children_seconds, cpu_sampler


def counters(wall_s, process_s, busy_s, steal_s, total_s, voluntary, involuntary, **others):
    own = {"voluntary_switches": voluntary, "involuntary_switches": involuntary, "page_faults": 0}
    system = {"system_busy_s": busy_s, "system_steal_s": steal_s, "system_total_s": total_s}
    return Counters(
        **{"wall_s": wall_s, "process_s": process_s, "children_s": 0.0} | own | system | others
    )


BEGIN = counters(10.0, 100.0, 500.0, 5.0, 1000.0, 10, 20)


def test_by_hand():
    end = counters(12.0, 103.0, 504.0, 5.5, 1008.0, 30, 21, page_faults=500)
    readings = between(BEGIN, end, 2.0)
    assert readings["utilization_percent"].value == pytest.approx(100 * 3 / (2 * 2))
    assert readings["system_utilization_percent"].value == pytest.approx(50)
    assert readings["other_processes_percent"].value == pytest.approx(100 * (4 - 3) / 8)
    assert readings["steal_percent"].value == pytest.approx(100 * 0.5 / 8)
    assert readings["voluntary_switches_per_s"].value == pytest.approx(10)
    assert readings["involuntary_switches_per_s"].value == pytest.approx(0.5)
    assert readings["page_faults_per_s"].value == pytest.approx(250)
    assert readings["utilization_percent"].window_s == pytest.approx(2)


def test_one_thread_a_core_is_fully_busy_where_two_logical_cpus_share_it():
    """Four threads on four cores of eight logical CPUs: half of the machine's time, all of what was
    asked for."""
    end = counters(12.0, 108.0, 508.0, 5.0, 1016.0, 30, 21)
    readings = between(BEGIN, end, cores=4.0)
    assert readings["utilization_percent"].value == pytest.approx(100)
    assert readings["system_utilization_percent"].value == pytest.approx(50)
    assert readings["other_processes_percent"].value == 0


def test_a_child_is_no_other_process():
    end = counters(12.0, 101.0, 504.0, 5.0, 1008.0, 30, 21, children_s=3.0)
    readings = between(BEGIN, end, cores=4.0)
    assert readings["other_processes_percent"].value == 0
    assert readings["utilization_percent"].value == pytest.approx(100 * 1 / (2 * 4))


def test_children_count_while_they_live_and_afterwards():
    script = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before = children_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        assert children_seconds() - before > 0.4
    assert children_seconds() - before > 0.4


def test_the_cgroups_share_and_what_its_quota_took():
    begin = replace(BEGIN, cgroup_used_s=50.0, cgroup_throttled_s=1.0)
    end = counters(
        12.0, 103.0, 504.0, 5.5, 1008.0, 30, 21, cgroup_used_s=53.0, cgroup_throttled_s=1.5
    )
    readings = between(begin, end, 2.0)
    assert readings["cgroup_utilization_percent"].value == pytest.approx(100 * 3 / (2 * 2))
    assert readings["throttled_percent"].value == pytest.approx(100 * 0.5 / 3.5)
    assert between(BEGIN, end, 2.0)["throttled_percent"].reason.key == "no_cgroup"


def test_a_quota_takes_half_of_what_eight_threads_on_four_cpus_want():
    begin = replace(BEGIN, cgroup_used_s=0.0, cgroup_throttled_s=0.0)
    # each of eight CPUs for half a second
    end = replace(begin, wall_s=11.0, cgroup_used_s=4.0, cgroup_throttled_s=4.0)
    assert between(begin, end, 4.0)["throttled_percent"].value == pytest.approx(50)
    assert between(begin, replace(begin, wall_s=11.0), 4.0)["throttled_percent"].value == 0


def test_a_window_shorter_than_a_tick_has_no_system_share():
    readings = between(BEGIN, replace(BEGIN, wall_s=10.001), 2.0)
    assert readings["system_utilization_percent"].value is None
    assert "10 ms" in str(readings["system_utilization_percent"].reason)


def test_steal_that_is_not_told_is_empty_not_zero():
    begin = replace(BEGIN, system_steal_s=None)
    readings = between(begin, counters(12, 103, 504, None, 1008, 0, 0), 2.0)
    assert readings["steal_percent"].value is None


def test_no_time_is_refused():
    with pytest.raises(ValueError, match="window of 0"):
        between(BEGIN, BEGIN, 1.0)


def test_stop_without_start():
    with pytest.raises(RuntimeError, match="before start"):
        cpu_sampler(cores=1.0).stop()


def test_spinning_reads_more_than_sleeping():
    def read(work) -> float:
        sampler = cpu_sampler(cores=1.0)
        sampler.start()
        work()
        return sampler.stop()["utilization_percent"].value

    def spin() -> None:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass

    assert read(lambda: time.sleep(0.1)) < read(spin)
