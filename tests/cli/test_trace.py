"""`mfulab trace` from the outside: text, JSON, a page, ranks, and files that are none."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_ranks import Made
from made_ranks import write as write_ranks
from rich.cells import cell_len
from support.slow import few
from support.trace_events import event, launched, operator, steps, trace, write

from mfulab.cli.main import main
from mfulab.cli.trace_text import _budget, short
from mfulab.core.language import LANGUAGES, Texts, catalogue, verdicts
from mfulab.mfu.account import Account, Loss

OF_A_CPU = Path(__file__).parents[2] / "examples/small_cnn.pt.trace.json.gz"


def one_step(**metadata):
    """A step of 1 ms: a bf16 matmul of 137 GFLOP in half of it, an all-reduce, the rest idle."""
    return trace(
        steps((0, 1000)),
        operator("aten::mm", 0, 5, [[4096, 4096], [4096, 4096]], "c10::BFloat16"),
        launched("nvjet_tst_128x256_64x4", 1, 100, 500, 1),
        event(
            "kernel",
            "ncclDevKernel_AllReduce_Sum",
            700,
            metadata.pop("collective", 100),
            20,
            stream=20,
        ),
        **metadata,
    )


def test_json_is_an_object_a_file(tmp_path, capsys):
    path = write(tmp_path / "step.json.gz", one_step())
    assert main(["trace", str(path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    found = (row["device"], row["steps"], row["window_s"])
    assert found == ("NVIDIA H100 80GB HBM3", 1, pytest.approx(1e-3))
    assert (row["flops"], row["effective_precision"]) == (2 * 4096**3, "bf16")
    assert row["peak_tflop_s"] == pytest.approx(989.4, abs=0.1)
    assert row["kernel_busy_percent"] == pytest.approx(60)
    assert row["mfu_percent"] == pytest.approx(100 * 2 * 4096**3 / 1e-3 / 989.43e12, rel=1e-4)
    assert row["hfu_percent"] == pytest.approx(row["mfu_percent"])
    assert row["verdict"] == "stalled"
    assert row["verdict_sentence"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_finding_because_and_try_precede_the_ladder(tmp_path, capsys, language):
    path = write(tmp_path / "step.json.gz", one_step())
    assert main(["trace", str(path), "--language", language]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = Texts(language, "lines")
    starts = (said("because", reason=""), said("try", advice=""))
    places = []
    for start in starts:
        places.append(next(at for at, line in enumerate(lines) if line.startswith(start)))
    rungs = tuple(map(str, catalogue(language)["rungs"].values()))
    ladder = [at for at, line in enumerate(lines) if line.startswith(rungs) and "█" in line]
    assert "60" in lines[places[0] - 1]  # the finding: how busy the device was
    assert places == sorted(places)
    assert places[-1] < min(ladder)


def test_text_names_what_is_long_and_a_bad_file_leaves_the_others(tmp_path, capsys):
    good, bad = write(tmp_path / "a.json", one_step()), write(tmp_path / "b.json", b"no trace")
    assert main(["trace", str(good), str(bad), "--all"]) == 1
    told = capsys.readouterr()
    assert "b.json: not JSON" in told.err
    assert told.err.count("\n") == 1
    assert "useful" in told.out
    assert "nvjet_tst_128x256_64x4" in told.out


@pytest.mark.parametrize("language", LANGUAGES)
def test_ranks_and_files_stand_in_tables_in_every_language(tmp_path, capsys, language):
    for rank in (0, 1):
        write(
            tmp_path / f"rank{rank}.json", one_step(distributedInfo={"rank": rank, "world_size": 2})
        )
    bare = trace(event("cpu_op", "aten::relu", 0, 9, 1), deviceProperties=[])
    write(tmp_path / "cpu.json", bare)
    assert main(["trace", str(tmp_path), "--language", language, "--all"]) == 0
    told = capsys.readouterr().out
    words = Texts(language, "trace")
    for key in ("budget", "products", "kernels", "overview", "ranks", "best_trace"):
        assert words(key) in told, key
    assert Texts(language, "verdict")("no_matmul").split()[0] in told
    wide = [line for line in told.splitlines() if cell_len(line.rstrip()) > 80]
    assert wide == []


def test_ranks_of_a_job_are_joined(tmp_path, capsys):
    for rank, collective in enumerate((100, 250)):
        content = one_step(collective=collective, distributedInfo={"rank": rank, "world_size": 2})
        write(tmp_path / f"rank{rank}.json", content)
    assert main(["trace", str(tmp_path), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["job_ranks"] == 2
    assert first["job_slowest_rank"] == 0, "the other waits for it"
    assert (first["waiting_percent"], second["waiting_percent"]) == (0, pytest.approx(15))
    assert first["job_mfu_percent"] == pytest.approx(first["mfu_percent"])


def test_ranks_that_only_their_files_names_tell_are_joined_too(tmp_path, capsys):
    for rank, collective in enumerate((100, 250)):
        write(tmp_path / f"job_rank{rank}.step9.json", one_step(collective=collective))
    write(tmp_path / "other_rank_0.json", one_step())
    assert main(["trace", str(tmp_path), "--json"]) == 0
    *job, other = map(json.loads, capsys.readouterr().out.splitlines())
    found = [(row["rank"], row["job_ranks"], row["job_slowest_rank"]) for row in job]
    assert found == [(0, 2, 0), (1, 2, 0)]
    assert (other["rank"], other["job_ranks"]) == (0, None)


def test_a_peak_is_given_for_an_unknown_device(tmp_path, capsys):
    path = write(tmp_path / "t.json", one_step(deviceProperties=[{"id": 0, "name": "Odd X1"}]))
    assert main(["trace", str(path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["mfu_percent"] is None
    assert row["mfu_reason"] == {"unknown_device": {"device": "Odd X1", "precision": "bf16"}}
    assert "no datasheet of Odd X1" in row["mfu_sentence"]
    assert main(["trace", str(path), "--json", "--peak", "bf16=1000"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_tflop_s"] == pytest.approx(1000)


@pytest.mark.parametrize(
    "words", [["--peak", "bf16"], ["--peak", "odd=3"], ["--model", "resnet18"]]
)
def test_a_mistake_in_an_option_is_one_message(tmp_path, capsys, words):
    path = write(tmp_path / "t.json", one_step())
    assert main(["trace", str(path), *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_options_of_a_model_need_one(tmp_path, capsys):
    assert main(["trace", str(write(tmp_path / "a.json", one_step())), "--batch-size", "4"]) == 2
    assert (
        "--batch-size: is of a model that is counted; give --model too" in capsys.readouterr().err
    )


def test_a_file_that_is_not_there(capsys):
    assert main(["trace", "nowhere/*.json"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_page_of_these_traces_alone(one_figure, tmp_path, capsys):
    path = write(tmp_path / "step.json.gz", one_step())
    assert main(["trace", str(path), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "read from a trace" in page
    assert Texts("en", "page")("no_rows").partition(";")[0] not in page
    assert "<svg" in page
    shown = page[page.index("<h1>") : page.index('<section id="rows">')].replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert re.match(r"<h1>step kept the GPU busy 60 % of the time", shown)
    assert re.search(r"Because</strong>.*the GPU is idle for \d+ % of the step", shown)
    assert Texts("en", "advice")("stalled") in html.unescape(shown)
    assert "No run" not in shown
    assert "--config" not in shown, "no experiment of another model"
    capsys.readouterr()
    assert main(["trace", str(path), "--html", str(path / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["trace", "--html", "folder", "step.json.gz"],
        ["measure", "--json", "folder", "train.py"],
        ["goodput", "job", "--figure", "folder"],
        ["page", "--out", "folder"],
    ],
    ids=" ".join,
)
def test_a_folder_given_where_a_file_is_written_stays(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "folder" / "kept"
    kept.parent.mkdir()
    kept.touch()
    assert main(words) == 2
    assert "'folder' is a directory" in capsys.readouterr().err
    assert kept.exists()


@pytest.mark.parametrize(("unknown_us", "known"), [(1500, "6.2"), (20, "83"), (0, None)])
def test_a_part_of_the_flops_is_called_a_part(tmp_path, capsys, unknown_us, known):
    """A matmul of 100 µs whose shapes are known, beside a convolution whose padding is not."""
    weight = [[32, 256, 56, 56], [256, 256, 3, 3]]
    content = trace(
        steps((0, 2000)),
        operator("aten::mm", 0, 5, [[4096, 4096], [4096, 4096]], "c10::BFloat16"),
        launched("nvjet_tst_128x256_64x4", 1, 100, 100, 1),
        [operator("aten::cudnn_convolution", 10, 5, weight)] if unknown_us else [],
        launched("volta_scudnn_128x64_relu", 11, 300, unknown_us, 2) if unknown_us else [],
    )
    path = write(tmp_path / "step.json", content)
    assert main(["trace", str(path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["mfu_percent"] is None) == (unknown_us == 1500)
    assert main(["trace", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if "FLOP per step" in line)
    assert (f"known {known} %" in line) if known else ("known" not in line)
    bounds = [line for line in lines if line.startswith("MFU") and "≥" in line]
    assert len(bounds) == (unknown_us == 20)


def test_a_part_is_called_one_in_a_comparison_and_on_the_page(one_figure, tmp_path, capsys):
    """The second trace has a convolution more, whose padding no record tells."""
    paths = []
    for name, unknown_us in (("whole", 0), ("part", 20)):
        weight = [[32, 256, 56, 56], [256, 256, 3, 3]]
        content = trace(
            steps((0, 2000)),
            operator("aten::mm", 0, 5, [[4096, 4096], [4096, 4096]], "c10::BFloat16"),
            launched("nvjet_tst_128x256_64x4", 1, 100, 100, 1),
            [operator("aten::cudnn_convolution", 10, 5, weight)] if unknown_us else [],
            launched("volta_scudnn_128x64_relu", 11, 300, unknown_us, 2) if unknown_us else [],
        )
        paths.append(str(write(tmp_path / f"{name}.json", content)))
    assert main(["trace", "--compare", *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    (mfu,) = (line for line in lines if line.startswith("MFU"))
    before, after = mfu.split("→")
    assert ("≥" in before, "≥" in after) == (False, True)
    (part,) = (line for line in lines if "part.json" in line)
    assert "83 %" in part
    assert main(["trace", "--compare", *paths, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["before_uncounted_percent"] is None
    assert row["after_uncounted_percent"] == pytest.approx(100 / 6)
    shares = []
    for path in paths:
        page = tmp_path / "page.html"
        assert main(["trace", path, "--html", str(page)]) == 0
        capsys.readouterr()
        shares.append(bool(re.search(r"≥ (6\.9|7)", page.read_text())))
    assert shares == [False, True]


@pytest.mark.parametrize("language", few(LANGUAGES))
def test_the_verdict_on_ranks_is_in_terminal_and_page(one_figure, tmp_path, capsys, language):
    write_ranks(Made(ranks=4, slow=(2,), steps=1, layers=10), tmp_path)
    page = tmp_path / "page.html"
    assert main(["trace", str(tmp_path), "--html", str(page), "--language", language]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert main(["trace", str(tmp_path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ((key, numbers),) = rows[0]["job_verdict"].items()
    assert (key, numbers["rank"]) == ("rank_slowest_compute", "2")
    assert numbers["waited_ms"] == pytest.approx(1.0, rel=0.03)
    sentence = verdicts.sentence(key, numbers, language)
    assert sentence in shown
    assert sentence in page.read_text()


# Brought by extras other than `trace`; a page of traces must not ask for any of them.
OF_OTHER_EXTRAS = (
    "snakemake numba cuda torch transformers hydra omegaconf triton nvmath google prometheus_client"
)
WITHOUT_THEM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from mfulab.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_page_of_traces_needs_one_extra_alone(tmp_path):
    path = write(tmp_path / "step.json", one_step())
    page = tmp_path / "page.html"
    words = [sys.executable, "-c", WITHOUT_THEM, OF_OTHER_EXTRAS]
    done = subprocess.run(
        [*words, "trace", str(path), "--html", str(page)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "<svg" in page.read_text()
    done = subprocess.run([*words, "run", "count_flops"], capture_output=True, text=True)
    assert done.returncode == 2, "what is blocked is missed where it is needed"


def test_the_points_of_the_budget_are_the_account_s(monkeypatch):
    losses = {"useful": Loss(600.0, 42.0), "idle": Loss(400.0, 8.0)}
    monkeypatch.setattr(Account, "losses", losses)
    row = {"time_s": 1.0, "steps": 2, "idle_causes": '{"starved": 200000000, "queued": 0}'}
    text = Texts("en", "trace")
    drawn = _budget(text, row | {"mfu_percent": 42.0}, is_cpu=False)
    _, ms, points = (list(column.cells) for column in drawn.columns)
    assert ms == ["600.000", "400.000", "100.000", "1,000.000"]
    assert points == ["42.00", "8.00", "(2.00)", "100"]
    assert drawn.columns[2].header == text("points")
    without = _budget(text, row | {"mfu_percent": None}, is_cpu=False)
    assert without.columns[2].header == text("share")


@given(st.text(st.sampled_from("가나a층_"), min_size=1), st.integers(4, 40))
def test_a_name_is_cut_by_the_columns_that_it_takes(name, most):
    cut = short(name, most)
    assert cell_len(cut) <= most
    if cell_len(name) <= most:
        assert cut == name
    else:
        assert cut.endswith("…")
        assert name.startswith(cut[:-1])
        assert cell_len(cut) >= most - 1


def test_a_reason_of_wide_letters_is_wrapped_whole(capsys, monkeypatch):
    for width in range(74, 84):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["trace", str(OF_A_CPU), "--language", "ko"]) == 0
        told = capsys.readouterr().out
        assert "--peak fp32=TFLOP/s" in told
        assert "…" not in told
