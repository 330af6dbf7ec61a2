"""Serving engines by their pages: recorded ones, one that goes away, and what is no page."""

import contextlib
import io
import json
import re
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from mfulab.cli import engines as shown
from mfulab.cli.export import Latest
from mfulab.cli.flops import config_of
from mfulab.cli.main import main
from mfulab.core.errors import ConfigurationError
from mfulab.core.language import LANGUAGES, Texts
from mfulab.device.peaks import Peak
from mfulab.loop.goodput import pages
from mfulab.loop.goodput.engines import sample_of

PAGES = Path(__file__).parent / "pages"
PEAK = Peak(spec=1.0, memory_gb_s=20.0)
SECONDS = 2.881


def parse(page, url, at):
    return pages.parse(page, url, at)[0]


def text(name):
    return (PAGES / f"{name}.txt").read_text()


def vllm(model=None, peak=PEAK, devices=1):
    before, after = (
        parse(text(f"vllm_0_32_{when}"), "a", at)
        for when, at in (("before", 0.0), ("after", SECONDS))
    )
    return sample_of("a", before, after, model, "bf16", peak, devices)


@pytest.fixture
def tiny():
    return config_of(str(PAGES / "tiny.json"), {}, None)


def test_a_page_of_vllm_in_its_own_flops_and_bytes():
    row = vllm()
    assert row["model"] == "tiny"
    assert row["prompt_tokens_per_s"] == pytest.approx((8481 - 11) / SECONDS)
    assert row["generated_tokens_per_s"] == pytest.approx(1600 / SECONDS)
    assert row["requests_per_s"] == pytest.approx(32 / SECONDS)
    assert row["ttft_s"] == pytest.approx((2.9608025550842285 - 0.12250995635986328) / 32)
    assert row["tpot_s"] == pytest.approx((7.953390767994279 - 0.015547622999292798) / 1568)
    found = row["mfu_percent"]
    assert found == pytest.approx(100 * (7.018938368e10 - 8.3951616e7) / SECONDS / 1e12)
    moved = 2.537593344e9 + 2.72196096e8 - 3.2071424e7 - 382720
    assert row["mbu_percent"] == pytest.approx(100 * moved / SECONDS / 20e9)
    assert (row["prefill_mfu_percent"], row["missing"]) == (None, ["no_halves"])


def test_the_model_counted_here_is_what_the_engine_counts(tiny):
    row = vllm(tiny)
    assert row["counted_tflop_s"] == pytest.approx(row["tflop_s"], rel=0.01)
    flops = row["tflop_s"] * SECONDS
    prefill = row["prefill_mfu_percent"] / 100 * PEAK.spec * SECONDS
    best_s = (
        prefill + max(flops - prefill, row["read_gb_s"] * SECONDS / PEAK.memory_gb_s * PEAK.spec)
    ) / PEAK.spec
    assert row["attainable_mfu_percent"] == pytest.approx(100 * flops / best_s / PEAK.spec)
    assert row["mfu_percent"] < row["attainable_mfu_percent"] < 100
    halves = row["prefill_mfu_percent"] + row["decode_mfu_percent"]
    assert halves == pytest.approx(row["mfu_percent"], rel=0.01)
    assert row["missing"] == []
    assert vllm(tiny, devices=2)["counted_tflop_s"] == pytest.approx(row["counted_tflop_s"] / 2)


def test_counters_that_stay_0_are_none(tiny):
    """As engines show them that were started without --enable-mfu-metrics."""
    pages = [
        re.sub(r"(_per_gpu_total\{.*\}) .*", r"\1 0.0", text(f"vllm_0_32_{when}"))
        for when in ("before", "after")
    ]
    before, after = (parse(page, "a", at) for page, at in zip(pages, (0.0, SECONDS), strict=True))
    row = sample_of("a", before, after, None, "bf16", PEAK)
    found = (row["tflop_s"], row["read_gb_s"], row["missing"])
    assert found == (None, None, ["no_flops", "no_bytes"])
    row = sample_of("a", before, after, tiny, "bf16", PEAK)
    assert row["tflop_s"] == pytest.approx(vllm()["tflop_s"], rel=0.01)
    seen = row["read_gb_s"]
    assert seen == pytest.approx(vllm()["read_gb_s"], rel=0.6), "weights and cache alone"
    assert row["missing"] == []


def test_one_request_is_counted_exactly_as_the_engine_does(tiny):
    """11 tokens read, 3 more decoded behind 12, 13 and 14: FLOPs as vLLM 0.32 exports them."""
    after = parse(text("vllm_0_32_before"), "a", 1.0)
    before = parse(
        "\n".join(
            f"{line} 0"
            for line in {
                line.rpartition(" ")[0]
                for line in text("vllm_0_32_before").splitlines()
                if line[0] != "#"
            }
        ),
        "a",
        0.0,
    )
    row = sample_of("a", before, after, tiny, "bf16", PEAK)
    assert row["tflop_s"] * 1e12 == pytest.approx(8.3951616e7)
    assert row["counted_tflop_s"] == pytest.approx(row["tflop_s"], rel=1e-9)


def later(name, factor, at):
    """A recorded page, and the same after a while in which every counter grew."""
    grown = []
    for line in text(name).splitlines():
        series, _, value = line.rpartition(" ")
        is_counter = line[0] != "#" and (
            "_total" in series or "_sum" in series or "_count" in series
        )
        grown.append(f"{series} {float(value) * factor}" if is_counter else line)
    return parse(text(name), name, 0.0), parse("\n".join(grown), name, at)


@pytest.mark.parametrize(
    ("name", "running", "waiting", "cache", "ttft", "tpot"),
    [
        (
            "sglang_0_4",
            162,
            2826,
            28.0,
            2.3518979474117756e6 / 11008,
            866964.5791549598 / 7.400757e6,
        ),
        ("vllm_v0", 3, 2, 0.0, 5686.670262336731 / 8499, 6772.65311050415 / 147223),
    ],
)
def test_pages_of_other_versions_and_what_they_lack(name, running, waiting, cache, ttft, tpot):
    row = sample_of(name, *later(name, 1.01, 10.0), None, "bf16", PEAK)
    found = (row["running"], row["waiting"], row["cache_percent"])
    assert found == (running, waiting, pytest.approx(cache))
    assert (row["ttft_s"], row["tpot_s"]) == (pytest.approx(ttft), pytest.approx(tpot))
    assert (row["mfu_percent"], row["mbu_percent"]) == (None, None)
    assert row["missing"] == ["no_flops", "no_bytes"]
    assert row["verdict"] == "queued"


def test_tokens_and_a_model_give_mfu_where_the_engine_has_no_flops():
    model = config_of("llama_3_1_8b", {}, None)
    row = sample_of(
        "b", *later("sglang_0_4", 1.01, 10.0), model, "bf16", Peak(spec=989.4, memory_gb_s=3350.0)
    )
    tokens = 0.01 * (8.128902e6 + 7.557572e6 - 11008)
    assert row["tflop_s"] == pytest.approx(tokens * 2 * 7.5e9 / 10 / 1e12, rel=0.1)
    assert row["mfu_percent"] == pytest.approx(100 * row["tflop_s"] / 989.4)
    assert row["missing"] == ["no_bytes"]


def test_ranks_of_one_engine_report_the_same_requests():
    page = 'sglang_num_running_reqs{tp_rank="0"} 3\nsglang_num_running_reqs{tp_rank="1"} 3\n'
    assert parse(page, "a", 0.0).values == {"running": 3.0}
    processes = page.replace("tp_rank", "pid")
    assert parse(processes, "a", 0.0).values == {"running": 3.0}
    ours = 'mfulab_process_tflop_s{pid="7"} 3\nmfulab_process_tflop_s{pid="8"} 4\n'
    assert parse(ours, "a", 0.0).values == {"tflop_s": 7.0}
    engines = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
    assert parse(engines, "a", 0.0).values == {"running": 7.0}
    assert parse(f"{engines}vllm:kv_cache_usage_perc NaN\n", "a", 0.0).values == {"running": 7.0}


SGLANG = 'sglang:num_running_reqs{{model_name="m",{}}} {}\n'


@pytest.mark.parametrize(
    ("labels", "running"),
    [
        ([('dp_rank="0",tp_rank="0"', 4), ('dp_rank="1",tp_rank="1"', 5), ('dp_rank="2",tp_rank="2"', 7)], 16),
        ([('dp_rank="0",tp_rank="1"', 4), ('dp_rank="0",tp_rank="0"', 3), ('dp_rank="1",tp_rank="10"', 5),
          ('dp_rank="1",tp_rank="9"', 6)], 9),
        ([('tp_rank="0",priority=""', 14), ('tp_rank="0",priority="-1"', 5), ('tp_rank="0",priority="0"', 9)], 14),
        ([('priority="all"', 14), ('priority="1"', 14), ('dp_rank="1",priority="1"', 3)], 14),
        ([('priority="-1"', 5), ('priority="0"', 9)], 14),
    ],
    ids=["dp attention", "shards of dp ranks", "empty total", "named total", "parts alone"],
)  # fmt: skip
def test_labels_tell_partitions_repeats_and_totals(labels, running):
    found = parse("".join(SGLANG.format(*one) for one in labels), "a", 0.0).values
    assert found == {"running": running}


def test_each_engine_of_a_page_has_a_row_behind_the_total_s(tiny):
    def page(*tokens):
        told = 'ray_vllm:{0}_total{{engine="{1}",WorkerId="w",model_name="m"}} {2}\n'
        of_each = [
            (name, engine, count)
            for engine, counts in enumerate(tokens)
            for name, count in zip(("prompt_tokens", "generation_tokens"), counts, strict=True)
        ]
        first = 'ray_vllm_time_to_first_token_seconds_{0}{{engine="{1}",WorkerId="w",model_name="m"}} {2}\n'
        first = "".join(
            first.format("count", engine, counts[0] / 100) for engine, counts in enumerate(tokens)
        )
        return first + "".join(told.format(*one) for one in of_each)

    before, after = (
        pages.parse(page(*tokens), "a", at)
        for at, tokens in ((0.0, [(1000, 100), (1000, 100)]), (1.0, [(3000, 400), (2000, 200)]))
    )
    assert [one.replica for one in after] == ["", "engine=0", "engine=1"]
    rows = [sample_of("a", *pair, tiny, "bf16", PEAK) for pair in zip(before, after, strict=True)]
    assert [row["prompt_tokens_per_s"] for row in rows] == [3000, 2000, 1000]
    whole, *each = (row["counted_tflop_s"] for row in rows)
    assert whole == pytest.approx(sum(each) / 2, rel=0.05), "each engine has a device of its own"
    shared = [
        one.replace("engine", "tp_rank").replace("WorkerId", "dp_rank") for one in (page((9, 1)),)
    ]
    assert pages.parse(*shared, "a", 0.0)[0].owners == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 99)),
        min_size=1,
    )
)
@settings(max_examples=30)
def test_any_partition_sums_to_its_total_with_or_without_repeats(series):
    """Parts by engine and priority, each repeated by every rank: with their totals on the page or
    not."""
    parts = {(engine, priority): value for engine, _, priority, value in series}
    lines = [
        f'vllm:num_requests_running{{engine="{engine}",priority="{priority}",tp_rank="{rank}"}} {value}\n'
        for (engine, priority), value in parts.items()
        for rank in (1, 0)
    ]
    sums = {
        one: sum(value for (engine, _), value in parts.items() if engine == one) for one, _ in parts
    }
    totals = [
        f'vllm:num_requests_running{{engine="{one}",tp_rank="0"}} {value}\n'
        for one, value in sums.items()
    ]
    for page in ("".join(lines), "".join(lines + totals)):
        whole, *engines = pages.parse(page, "a", 0.0)
        assert whole.values == {"running": sum(parts.values())}
        assert {one.replica: one.values["running"] for one in engines} == (
            {f"engine={one}": value for one, value in sums.items()} if len(sums) > 1 else {}
        )


def look(page):
    """Two readings of a page: a row a part, or one sentence."""
    with contextlib.suppress(ConfigurationError):
        before, after = (pages.parse(page, "a", at) for at in (0.0, SECONDS))
        for first, second in zip(before, after, strict=True):
            json.dumps(sample_of("a", first, second, None, "bf16", PEAK), allow_nan=False)


@st.composite
def torn(draw):
    """A real page with characters changed and its end cut, or lines of any text."""
    page = [*text(draw(st.sampled_from(["vllm_0_32_after", "sglang_0_4", "vllm_v0"])))]
    characters = st.sampled_from('{}",=\\ \n\t#e-+.NaIf0:\0é\x1b') | st.characters()
    for place, character in draw(
        st.lists(st.tuples(st.integers(0, len(page) - 1), characters), max_size=6)
    ):
        page[place] = character
    whole = "".join(page[: draw(st.none() | st.integers(0, len(page)))])
    return draw(st.just(whole) | st.lists(st.text(max_size=40)).map("\n".join))


@settings(max_examples=15)
@given(torn())
def test_any_page_is_read_or_refused_in_one_sentence(page):
    look(page)


@pytest.mark.slow
@settings(max_examples=2000)
@given(torn())
def test_any_of_two_thousand_pages_is_read_or_refused_in_one_sentence(page):
    look(page)


@pytest.mark.parametrize("part", ["body", "headers"])
def test_a_page_that_comes_byte_by_byte_ends_and_holds_up_no_other(serve, monkeypatch, part):
    monkeypatch.setattr(pages, "DEADLINE_S", 2.0)
    slow = socketserver.ThreadingTCPServer(("127.0.0.1", 0), None)
    slow.daemon_threads = True
    over = threading.Event()

    def drip(request, *_):
        request.recv(1 << 16)
        request.sendall(b"HTTP/1.1 200 OK\r\n" + b"\r\n" * (part == "body"))
        while not over.wait(0.02):
            with contextlib.suppress(OSError):
                request.sendall(b"x")

    slow.finish_request = drip
    threading.Thread(target=slow.serve_forever, daemon=True).start()
    dripping = f"http://127.0.0.1:{slow.server_address[1]}"
    found, gone = pages.Reader([dripping, serve(text("vllm_v0"))]).read()
    over.set()
    slow.shutdown()
    slow.server_close()
    assert "no whole page within" in str(gone[dripping])
    ((good, *_),) = found.values()
    assert good.values["running"] == 3.0


def test_an_engine_that_was_started_anew_has_no_rates():
    before, after = (
        parse(text(f"vllm_0_32_{when}"), "a", at) for when, at in (("after", 0.0), ("before", 1.0))
    )
    row = sample_of("a", before, after, None, "bf16", PEAK)
    assert row["missing"][0] == "anew"
    assert (row["generated_tokens_per_s"], row["mfu_percent"]) == (None, None)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ('{"object":"list"}', "answers with no page for Prometheus"),
        ("<html>\n<body>hello</body>", "answers with no page for Prometheus"),
        ("", "has no metric of vLLM, SGLang or mfulab that is known here, but nothing"),
        ("up 1\n", "has no metric of vLLM, SGLang or mfulab that is known here, but up"),
    ],
)
def test_what_is_no_page_of_an_engine_is_one_sentence(page, message):
    with pytest.raises(ConfigurationError, match=message):
        parse(page, "http://x", 0.0)


@pytest.fixture
def serve():
    """Serves pages in turn, the last for ever; an empty one is an error of the server."""
    servers = []

    def start(*pages):
        left = list(pages)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                page = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(200 if page else 503)
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *_):
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def watched(*arguments):
    return main(["watch", "--interval", "0.01", "--count", "1", *arguments])


def test_an_engine_and_a_whole_fleet(serve, capsys):
    engine = serve(text("vllm_0_32_before"), text("vllm_0_32_after"))
    other = serve(
        'mfulab_utilization_percent{name="H100"} 97\nmfulab_process_mfu_spec_percent{pid="1"} 41\n'
    )
    assert (
        watched("--engine", engine, f"{other}/metrics", "--gpu", "NVIDIA H100 80GB HBM3", "--json")
        == 0
    )
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["answer"]["value"] == first["mfu_percent"]
    assert first["mfu_percent"] > 0
    found = (second["engine"], second["utilization_percent"], second["mfu_percent"])
    assert found == ("mfulab", 97, 41)
    again = serve(text("vllm_0_32_before"), text("vllm_0_32_after"))
    # Not every CPU has units of bf16.
    seen = watched("--engine", again, "--model", str(PAGES / "tiny.json"), "--precision", "fp32")
    assert seen == 0
    out = capsys.readouterr().out
    assert "MFU of prefill" in out
    assert "MBU is empty: no memory bandwidth is known for this device" in " ".join(out.split())


def test_an_engine_that_goes_away_is_said_and_watched_on(serve):
    address = serve(text("vllm_0_32_before"), "", text("vllm_0_32_after"))
    source = shown.frames([address], 0.01, None, "bf16", None, 1, "ko")
    gone, picture = next(source)
    reason = gone["engines"][0]["gone"]
    assert "Service Unavailable" in reason
    console = Console(file=io.StringIO(), width=200)
    console.print(picture)
    assert Texts("ko", "engine")("gone", reason=reason, ago=0.0) in console.file.getvalue()
    back, _ = next(source)
    assert back["engines"][0]["requests_per_s"] > 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_of_an_engine_is_in_the_language_asked_for(language):
    engine = vllm(peak=Peak(spec=1.0))
    console = Console(file=io.StringIO(), width=400)
    console.print(shown.picture([engine], {}, Peak(spec=1.0, device="A"), {}, language))
    words = console.file.getvalue()
    text = Texts(language, "engine")
    for key in ("mfu_percent", "tpot_s", engine["verdict"]):
        assert text(key) in words
    assert text("no_bandwidth", of="A", why="") in words


def test_an_engine_that_never_answers_is_one_sentence(capsys):
    assert watched("--engine", "http://127.0.0.1:9") == 2
    assert "--engine http://127.0.0.1:9: Connection refused" in capsys.readouterr().err


def test_engines_are_series_of_their_own(tiny):
    latest = Latest()
    latest.sample = {"unix_s": 1.0, "engines": [vllm(tiny)]}
    gauges = {gauge.name: gauge.samples[0] for gauge in latest.collect()}
    found = gauges["mfulab_engine_decode_mfu_percent"]
    assert found.labels == {"page": "a", "engine": "vllm", "model": "tiny", "precision": "bf16"}
    assert found.value > 0
