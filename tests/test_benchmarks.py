"""What `make bench` prints, and that the sweeps which it times still run; no time is asserted."""

import pytest

pytestmark = pytest.mark.usefixtures("benchmark_scripts")


@pytest.mark.parametrize(("got", "holds"), [(0.15, "yes"), (0.1501, "no")])
def test_a_target_stands_beside_what_was_got(capsys, got, holds):
    from targets import HEADER, Target, report

    assert report(Target("a run", 0.15, "s"), got) == (holds == "yes")
    line = capsys.readouterr().out
    assert [cell.strip() for cell in line.split("|")] == ["a run ≤ 0.15 s", "0.15 s", holds]
    assert line.index("|") == HEADER.index("|")


def test_a_target_may_be_the_least():
    from targets import Target

    duty = Target("duty cycle", 60, "%", is_least=True)
    assert duty.holds(60)
    assert not duty.holds(59.9)


@pytest.mark.workflow
def test_trivial_sweeps_have_a_row_a_run_and_nothing_to_do_afterwards():
    import trivial

    with trivial.copy() as folder:
        trivial.measure(folder, trivial.counts(3), 3, "2")
        trivial.measure_nothing(folder, trivial.counts(3), "2")
        configs = [path.parent.name for path in folder.glob("results/count_flops/*/config.json")]
        assert sorted(configs) == [f"model=linear_1024,batch_size={size}" for size in (1, 2, 3)]
        trivial.plan(folder, trivial.matmuls(2))
        assert len(list(folder.glob("results/*/bench_matmul/*/config.json"))) == 2
