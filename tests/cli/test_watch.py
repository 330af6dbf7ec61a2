"""`mfulab watch` on this CPU for real, and on a stand-in GPU."""

import http.server
import io
import json
import os
import threading
import urllib.parse
import urllib.request
from dataclasses import asdict, replace

import pytest
import torch
from rich.console import Console
from support.nvml_stand_in import Gpu, StandIn
from support.processes import HANGS_S

import mfulab
from mfulab.cli import jobs, watch
from mfulab.cli.export import prometheus_page
from mfulab.cli.main import main
from mfulab.core.language import LANGUAGES, Texts, verdicts
from mfulab.core.said import Said
from mfulab.device.cpu import usable_cores
from mfulab.device.peaks import Peak
from mfulab.device.samplers.reading import Reading
from mfulab.device.vendors import nvml
from mfulab.loop.interactive import published
from mfulab.loop.interactive.published import Rate

RATE = Rate(42, "train.py", "GPU-1", {"bf16": 0.4 * 989.4e12}, 0.02, 5.0)


def console() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=False)


@pytest.fixture
def gpu(monkeypatch):
    def make(made: Gpu) -> StandIn:
        return StandIn(made).install(monkeypatch)

    yield make
    nvml.why_absent.cache_clear()


def test_this_cpu(capsys):
    assert main(["watch", "--device", "cpu", "--interval", "0.05", "--count", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "utilization" in text
    assert "context switches/s" in text


def test_a_gpu_with_gpm(gpu, monkeypatch):
    library = gpu(Gpu(uuid="GPU-1"))

    def wait() -> None:
        library.now += 1.0

    readings, facts = next(watch.frames("cuda", "GPU-1", wait, library.time))
    assert (readings["utilization_percent"].value, readings["sm_active_percent"].value) == (100, 90)
    assert "1.755 GHz · 600 W · 55.0 °C · 21.5 GB in use" in facts
    shown = console()
    monkeypatch.setattr(
        watch, "local_peak", lambda precision: Peak(spec=989.4, spec_clock_mhz=1830.0)
    )
    sample = watch.sample_of("H100", "GPU-1", readings, [RATE], 5.0)
    shown.print(watch.picture(sample, readings, facts))
    text = shown.file.getvalue()
    assert "active SMs" in text
    tensor = readings["tensor_active_percent"].value
    assert sample["expected_mfu_percent"] == pytest.approx(tensor * 1755 / 1830)
    assert "MFU by tensor pipe × clock" in text
    assert (
        "train.py (42): 396 TFLOP/s in bf16, 20.0 ms a step, MFU 40.0 % of the spec peak"
        in " ".join(text.split())
    )


@pytest.mark.parametrize(
    ("ofu", "key"),
    [(40.0, None), (47.9, None), (48.1, "more_ran"), (33.0, "more_counted")],
)
def test_counted_mfu_and_the_tensor_pipe_differ_by_a_fifth(monkeypatch, ofu, key):
    peak = Peak(spec=989.4, spec_clock_mhz=1000.0)
    monkeypatch.setattr(watch, "local_peak", lambda precision: peak)
    monkeypatch.setattr(watch, "emulated_here", lambda device: ())
    readings = {
        "tensor_active_percent": Reading(ofu, "%", "GPM"),
        "clock_mhz": Reading(1000.0, "MHz", "NVML"),
    }
    sample = watch.sample_of("H100", "GPU-1", readings, [RATE], 5.0)
    assert sample["counted_mfu_percent"] == pytest.approx(40.0)
    said = watch.contradiction(sample)
    assert (said and said.key) == key
    if said is not None:
        assert said.numbers == {"ofu": ofu, "counted": 40.0, "process": "train.py (42)"}
    on_cores = replace(RATE, formats={"fp32": 1e13})
    found = watch.contradiction(watch.sample_of("H100", "GPU-1", readings, [on_cores], 5.0))
    assert found is None, "off the tensor cores"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_refresh_is_in_the_language_asked_for(gpu, monkeypatch, language):
    """Each sentence about a GPU without GPM, and about processes that contradict its counters."""
    library = gpu(Gpu(uuid="GPU-1", gpm=False, processes=[1]))
    unsafe = Said("folder_of_others", {"folder": "a"})
    monkeypatch.setattr(watch, "why_unsafe", lambda folder: unsafe)
    frames = watch.frames("cuda", "GPU-1", lambda: None, library.time, language)
    readings, facts = next(frames)
    process = {"name": "a", "pid": 1, "tflop_s": 2.0, "precision": "bf16", "step_s": 0.1}
    sample = {
        "name": "H100",
        "expected_mfu_percent": 10.0,
        "counted_mfu_percent": 40.0,
        "processes": [
            {**process, "mfu_spec_percent": 40.0},
            {**process, "mfu_spec_percent": None},
        ],
    }
    doubt = Said("more_counted", {"ofu": 10.0, "counted": 40.0, "process": "a (1)"})
    monkeypatch.setattr(watch, "contradiction", lambda sample: doubt)
    shown = Console(file=io.StringIO(), width=400)
    shown.print(watch.picture(sample, readings, facts, language))
    words = shown.file.getvalue()
    text = Texts(language, "watch")
    why = verdicts.say(readings["sm_active_percent"].reason, language)
    for sentence in (
        text("other_processes", count=1),
        text("by_tensor_pipe", share="10.0 %"),
        text("finer_rungs", reason=why),
        text("process_mfu", share="40.0 %", bar=""),
        text("process_without_peak"),
        text("unsafe_folder", reason=verdicts.say(unsafe, language)),
        verdicts.say(doubt, language),
    ):
        assert sentence in words
    quiet = {**sample, "expected_mfu_percent": None, "processes": []}
    shown.print(watch.picture(quiet, readings, facts, language))
    assert text("busy_is_not_useful") in shown.file.getvalue()


def test_watch_speaks_the_terminal_s_language(prometheus, monkeypatch, capsys):
    prometheus.answers = {"gpus": [({"hpc_job": "1", "modelName": H100}, 2)]}
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    once = ["--interval", "0.05", "--count", "1"]
    assert main(["watch", "--device", "cpu", *once]) == 0
    text = Texts("ko", "watch")
    assert text("all_processes", cores=usable_cores()) in capsys.readouterr().out
    assert main(["watch", "--jobs", f"127.0.0.1:{prometheus.server_port}", "--hours", "1.5"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert text("gpu_hours") in shown
    assert text("ofu_of_jobs") in shown


def test_a_gpu_without_gpm_says_why(gpu):
    gpu(Gpu(uuid="GPU-1", gpm=False, refused={"nvmlDeviceGetUtilizationRates"}))
    readings, facts = next(watch.frames("cuda", "GPU-1", lambda: None))
    shown = console()
    shown.print(watch.picture(watch.sample_of("T4", "", readings, [], 5.0), readings, facts))
    text = shown.file.getvalue()
    assert "finer rungs: this GPU has no GPM" in text
    assert "refused by the driver" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0"], "'0' is no number from 0.001 to "),
        (["--device", "gpu"], "Choices: auto, cpu"),
        (["--model", "gpt2"], "--model: is of --engine, which is missing"),
        (["--jobs", "http://127.0.0.1:9", "--devices", "1"], "--devices: is of --engine"),
        (["--hours", "3"], "--hours: is of --jobs"),
        (["--jobs", "a", "--engine", "b"], "give one of them"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert main(["watch", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_gpu(monkeypatch, capsys):
    monkeypatch.setattr(nvml, "why_absent", lambda: "no NVIDIA driver answers")
    assert main(["watch", "--device", "cuda"]) == 2
    assert "no NVIDIA driver answers" in capsys.readouterr().err


def test_a_line_of_json_each_time(capsys):
    assert main(["watch", "--device", "cpu", "--interval", "0.05", "--count", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 2
    expected = {"unix_s", "name", "utilization_percent", "expected_mfu_percent", "processes"}
    assert expected <= lines[0].keys()


def scraped(capsys, sample):
    """What Prometheus gets of a sample, without comments, and from where."""
    with prometheus_page(0) as page:
        page.sample = sample
        address = capsys.readouterr().err.removeprefix("Prometheus: ").strip()
        with urllib.request.urlopen(address, timeout=HANGS_S) as answer:
            lines = answer.read().decode().splitlines()
    return [line for line in lines if not line.startswith("#")], address


def test_prometheus_reads_what_is_known_of_the_device_from_this_machine_alone(capsys):
    sample = {"name": 'a "b"', "uuid": None, "utilization_percent": 7.5}
    sample |= {"clock_mhz": None, "processes": []}
    lines, address = scraped(capsys, sample)
    assert lines == ['mfulab_utilization_percent{name="a \\"b\\""} 7.5']
    assert address.startswith("http://127.0.0.1:")


def test_processes_are_series_of_their_own(capsys):
    process = {"pid": 1, "name": "train.py", "precision": "bf16"}
    process |= {"tflop_s": 2.0, "mfu_spec_percent": None}
    lines, _ = scraped(capsys, {"name": "x", "processes": [process, {**process, "pid": 2}]})
    labels = 'name="train.py",pid="{}",precision="bf16"'
    assert lines == [f"mfulab_process_tflop_s{{{labels.format(pid)}}} 2.0" for pid in (1, 2)]


def test_a_port_that_is_taken_is_one_message(capsys):
    with prometheus_page(0):
        port = capsys.readouterr().err.rpartition(":")[2].split("/")[0]
        assert main(["watch", "--device", "cpu", "--count", "1", "--prometheus", port]) == 2
    assert f"--prometheus {port}: " in capsys.readouterr().err


def test_a_measured_process_publishes_its_rate(monkeypatch, tmp_path):
    monkeypatch.setattr(published, "folder", lambda: tmp_path)
    monkeypatch.setattr(published, "INTERVAL_S", 0.0)
    model = torch.nn.Linear(16, 8)
    with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        assert published.rates() == []
        for _ in range(4):
            model(torch.randn(4, 16)).sum().backward()
            window.step()
        [rate] = published.rates()
        assert (rate.pid, rate.device, list(rate.formats)) == (os.getpid(), "cpu", ["fp32"])
        assert sum(rate.formats.values()) * rate.step_s == pytest.approx(2 * 2 * 4 * 16 * 8)
        sample = watch.sample_of("CPU", "", {}, [rate], 5.0)
        assert sample["processes"][0]["tflop_s"] == pytest.approx(sum(rate.formats.values()) / 1e12)
    assert not list(tmp_path.iterdir()), "a rate goes with its window"


def test_rates_of_the_past_and_of_the_dead_are_not_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(published, "folder", lambda: tmp_path)
    own = tmp_path / f"{os.getpid()}.json"
    own.write_text(json.dumps({**asdict(RATE), "pid": os.getpid()}))
    (tmp_path / "999999999.json").write_text(json.dumps(asdict(RATE)))
    assert [rate.pid for rate in published.rates(now=lambda: 6.0)] == [os.getpid()]
    assert published.rates(now=lambda: 100.0) == []
    assert [path.name for path in tmp_path.iterdir()] == [own.name]
    own.write_text("{half")
    assert published.rates(now=lambda: 6.0) == []


@pytest.mark.parametrize("what", ["anybody's folder", "a link", "a file"])
def test_nothing_is_published_where_others_may_write_and_that_is_said(monkeypatch, tmp_path, what):
    """A folder in the temporary directory that another user made first decides what is
    overwritten."""
    place, victim = tmp_path / f"mfulab-{os.getuid()}", tmp_path / "victim"
    victim.mkdir()
    if what == "a link":
        place.symlink_to(victim)
    elif what == "a file":
        place.write_text("kept")
    else:
        place.mkdir()
        place.chmod(0o777)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(published.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(published, "INTERVAL_S", 0.0)
    model = torch.nn.Linear(16, 8)
    window = mfulab.measure(model, quiet=True, ceiling_s=0)
    with pytest.warns(UserWarning, match="only this user may write"):
        window.__enter__()
    for _ in range(3):
        model(torch.randn(4, 16)).sum().backward()
        window.step()
    window.__exit__(None, None, None)
    assert not list(victim.iterdir())
    assert published.rates() == []
    shown = console()
    sample = {"name": "CPU", "expected_mfu_percent": None, "processes": []}
    shown.print(watch.picture(sample, {}, ""))
    assert "only this user may write" in " ".join(shown.file.getvalue().split())


def test_a_link_where_a_rate_is_written_is_not_followed(monkeypatch, tmp_path):
    monkeypatch.setattr(published, "folder", lambda: tmp_path / "own")
    monkeypatch.setattr(published, "INTERVAL_S", 0.0)
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "own").mkdir(mode=0o700)
    for ending in ("part", "json"):
        (tmp_path / "own" / f"{os.getpid()}.{ending}").symlink_to(tmp_path / "victim")
    model = torch.nn.Linear(16, 8)
    with mfulab.measure(model, quiet=True, ceiling_s=0) as run:
        for _ in range(3):
            model(torch.randn(4, 16)).sum().backward()
            run.step()
        assert len(published.rates()) == 1
    assert (tmp_path / "victim").read_text() == "kept"


@pytest.mark.parametrize(
    "change",
    [
        {"formats": "bf16"},
        {"formats": {}},
        {"formats": {"bf16": "fast"}},
        {"formats": {"fp99": 1.0}},
        {"formats": {"bf16": float("nan")}},
        {"unix_s": "now"},
        {"name": 3},
        {"more": 1, "step_s": None},
        {"name": "x" * (1 << 17)},
    ],
)
def test_a_file_that_holds_no_rate_is_passed_over(monkeypatch, tmp_path, change):
    monkeypatch.setattr(published, "folder", lambda: tmp_path)
    (tmp_path / f"{os.getpid()}.json").write_text(json.dumps({**asdict(RATE), **change}))
    assert published.rates(now=lambda: 6.0) == []


def test_another_user_s_rate_is_not_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(published, "folder", lambda: tmp_path)
    file = tmp_path / f"{os.getpid()}.json"
    file.write_text(json.dumps(asdict(RATE)))
    assert published.rates(now=lambda: 6.0) != []
    user = os.getuid()
    monkeypatch.setattr(published, "why_unsafe", lambda place: "")
    monkeypatch.setattr(published.os, "getuid", lambda: user + 1)
    assert published.rates(now=lambda: 6.0) == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_ends_no_watch(monkeypatch, tmp_path, make):
    monkeypatch.setattr(published, "folder", lambda: tmp_path)
    make(tmp_path / f"{os.getpid()}.json")
    assert published.rates(now=lambda: 6.0) == []


H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def prometheus():
    """A server that answers instant queries as Prometheus does; `answers` has series by column, or
    a text for all."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path, _, query = self.path.partition("?")
            asked = urllib.parse.parse_qs(query)["query"][0]
            assert path == "/api/v1/query"
            names = {
                text.replace("RANGE", "90m"): name
                for name, text in {**jobs.QUERIES, "users": jobs.OWNERS}.items()
            }
            result = [
                {"metric": one, "value": [1.5, str(value)]}
                for one, value in server.answers.get(names[asked], [])
            ]
            whole = {"status": "success", "data": {"resultType": "vector", "result": result}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(server.text or json.dumps(whole).encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers, server.text = {}, b""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_jobs_of_a_cluster_that_read_full_and_use_little_come_first(prometheus, capsys):
    """As Prometheus 2.42 answered of the same series: dcgm-exporter's labels, slurm-job-exporter's
    users, a pod."""
    carol = {"exported_pod": "train-0", "exported_namespace": "carol"}
    of = {
        "101": {"hpc_job": "101", "modelName": H100},
        "102": {"hpc_job": "102", "modelName": H100},
        "pod": carol | {"modelName": "NVIDIA A100-SXM4-80GB"},
        "other": {"hpc_job": "104", "modelName": "NVIDIA Unknown 9000"},
        "idle": {"modelName": H100},
    }

    def column(*values):
        return [
            (labels, value)
            for labels, value in zip(of.values(), values, strict=True)
            if value is not None
        ]

    prometheus.answers = {
        "users": [
            ({"slurmjobid": "101", "user": "alice"}, 1),
            ({"slurmjobid": "102", "user": "bob"}, 1),
        ],
        "gpus": column(2, 1, None, 1, 1),
        "gpu_hours": column(3.0, 1.5, 0.5, 0.5, 1.5),
        "utilization_percent": column(100, 98, 90, "NaN", 0),
        "active_mhz": column(0.03 * 1830, 0.5 * 1830, None, 0.2 * 1410, 0),
    }
    url = f"127.0.0.1:{prometheus.server_port}"
    assert main(["watch", "--jobs", url, "--hours", "1.5", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["answer"]["value"] for row in found] == [row["ofu_percent"] for row in found]
    jobs = [("alice", "101", 2, 3.0), ("bob", "102", 1, 1.5), ("", "104", 1, 0.5)]
    jobs += [("carol", "train-0", None, 0.5)]
    assert [(row["user"], row["job"], row["gpus"], row["gpu_hours"]) for row in found] == jobs
    assert [row["utilization_percent"] for row in found] == [100, 98, None, 90]
    seen = [row["ofu_percent"] for row in found]
    assert seen == [pytest.approx(3), pytest.approx(50), None, None]
    assert main(["watch", "--jobs", url, "--hours", "1.5"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "alice" in line)
    assert line.split()[-4:] == ["2", "3.0", "100.0", "3.0"]


EXPORTER = {"pod": "nvidia-dcgm-exporter-78z52", "namespace": "gpu-operator"}


@pytest.mark.parametrize(
    ("held", "idle", "job"),
    [
        (
            {"exported_pod": "train-0", "exported_namespace": "ml", "pod": "gpu-metrics-1"},
            {"pod": "gpu-metrics-1", "namespace": "monitoring"},
            ("ml", "train-0"),
        ),
        ({"pod": "train-0", "namespace": "ml"}, EXPORTER, ("ml", "train-0")),
        ({"hpc_job": "101", **EXPORTER}, EXPORTER, ("", "101")),
    ],
)
def test_gpus_that_nobody_holds_are_no_job_of_their_exporter(prometheus, capsys, held, idle, job):
    prometheus.answers = {
        name: [(held | {"modelName": H100}, 4), (idle | {"modelName": H100}, 8)]
        for name in jobs.QUERIES
    }
    url = f"127.0.0.1:{prometheus.server_port}"
    assert main(["watch", "--jobs", url, "--hours", "1.5", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["user"], row["job"], row["gpus"]) == (*job, 4)


def test_a_gpu_counts_once_however_many_scrapes_and_processes_report_it():
    for query in jobs.QUERIES.values():
        inner = query.partition("(max ")[2].partition(")")[0]
        assert {"UUID", "GPU_I_ID"} <= set(inner.replace(",", " ").split())
        assert "pid" not in query


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "has no label of hpc_job"),
        (b"<html>", "answers as no Prometheus"),
        (b'{"data": 3}', "as no Prometheus"),
    ],
)
def test_a_server_without_jobs_says_so(prometheus, capsys, text, said):
    prometheus.text = text
    options = ["watch", "--jobs", f"http://127.0.0.1:{prometheus.server_port}/", "--hours", "1.5"]
    assert main(options) == 2
    assert said in capsys.readouterr().err
