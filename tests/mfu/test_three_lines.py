"""Finding, because and try of one run, in every language, for extreme rows too."""

import json

import pytest

from mfulab.core.language import LANGUAGES, Texts, verdicts
from mfulab.mfu import account, models
from mfulab.mfu.causes import BY_KEY
from mfulab.mfu.models import is_load, names
from mfulab.mfu.three_lines import (
    AGAIN,
    OF_TRACES,
    advice,
    device_of,
    finding,
    first_remedy,
    in_code,
    is_slow_update,
    kind_of_operator,
    most_saved,
    otherwise,
    three_lines,
    tried_axis,
    tried_config,
    used_share,
)

RUN = {
    "model": "resnet18", "workload": "training", "precision": "fp32", "batch_size": 4.0, "sequence_length": None,
    "time_s": 0.01, "utilization_percent": 98.0, "mfu_percent": 3.2, "device": "cpu", "idle_ms": 6.0, "useful_ms": 4.0,
}  # fmt: skip
PADDED = json.dumps({"side": 606, "padded": 640, "ms": 1.33, "best_ms": 0.09, "rate": 100})


@pytest.mark.parametrize("cause", sorted(BY_KEY))
def test_the_config_tries_the_advice_on_the_run_itself(cause):
    config = tried_config({**RUN, "verdict": cause})
    keys = dict(word.split("=", 1) for word in config.split())
    if "experiment" in keys:
        assert set(keys) == {"experiment"}
        return
    if cause == "no_mfu":
        assert config == ""
        return
    assert keys["model"] == "resnet18"
    assert keys["workload"].startswith("training")
    swept = {key for key, value in keys.items() if "," in value}
    is_traced = "profile.trace" in config
    assert len(swept) == (0 if is_traced or cause in AGAIN else 1), config
    if "batch_size" in swept:
        assert keys["batch_size"] == "4,8,16"


@pytest.mark.parametrize("model", ["a_model_of_mine", "", None])
def test_no_command_tries_another_model(model):
    for cause in BY_KEY:
        assert "model=" not in tried_config({**RUN, "model": model, "verdict": cause})


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("cause", sorted(BY_KEY))
def test_padding_replaces_no_other_advice(cause, language):
    plain = {**RUN, "verdict": cause, "verdict_reason": cause}
    assert advice({**plain, "misaligned": PADDED}, language) == advice(plain, language)
    padded = {**plain, "verdict": "shape", "verdict_reason": "misaligned", "misaligned": PADDED}
    assert "640" in advice(padded, language)


LONGEST = "other_operators_most"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("name", "mode", "kind"),
    [
        ("aten::addcdiv_", "training", "update"),
        ("aten::mul", "training", "others"),
        ("aten::_softmax", "inference", "attention"),
        ("aten::batch_norm", "inference", "folded"),
        ("aten::native_batch_norm_backward", "training", "others"),
        ("aten::gelu", "inference", "others"),
    ],
)
def test_the_remedy_is_of_the_operator_that_takes_most(name, mode, kind, language):
    numbers = json.dumps({"name": name, "share": 29.0, "others": 65.0})
    row = {**RUN, "mode": mode, "verdict": "other_operators", "verdict_reason": LONGEST}
    row |= {"verdict_numbers": numbers, "precision": "bf16"}
    text = Texts(language, "otherwise_operators")
    lines = Texts(language, "lines")
    assert kind_of_operator(row) == kind
    assert text(kind, shorter=0) != text(kind, shorter=1)
    for precision, shorter in (("bf16", 0), ("fp32", 1)):
        others = text(kind, shorter=shorter)
        said = lines("otherwise", others=others) if others else ""
        assert otherwise({**row, "precision": precision}, language) == said


UPDATE = {
    **RUN,
    "mode": "training",
    "workload": "training",
    "optimizer": "adam",
    "verdict": "other_operators",
    "verdict_reason": LONGEST,
    "verdict_numbers": json.dumps({"name": "aten::addcdiv_", "share": 38.0, "others": 72.0}),
    "other_operators_ms": 7.0,
    "forward_ms": 2.0,
    "backward_ms": 2.0,
    "optimiser_ms": 4.0,
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_slow_update_is_fused_and_not_compiled(language):
    told = advice(UPDATE, language)
    assert told.startswith(Texts(language, "advice_operators")("update"))
    assert "5.00" in told, "half of the phases' time, though operators take more"
    assert "7.00" in advice({**UPDATE, "optimiser_ms": None}, language).replace("7.0 ", "7.00 ")
    assert "torch.compile" in otherwise(UPDATE, language)
    assert in_code(UPDATE) == "torch.optim.Adam(..., fused=True)"


ZEROS = {
    **UPDATE,
    "verdict_reason": "other_operators_zeros",
    "verdict_numbers": json.dumps(
        {
            "name": "aten::sqrt",
            "share": 20.0,
            "others": 70.0,
            "matmuls": 15.0,
            "speed": 20.0,
            "measured": 1,
            "beaten": 0,
            "zeros": 49.0,
        }
    ),
    "time_s": 0.01,
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_update_of_zeros_is_fused_too_and_other_batches_are_named(language):
    assert is_slow_update(ZEROS)
    assert advice(ZEROS, language).startswith(
        Texts(language, "advice_operators")("update_of_zeros")
    )
    others = Texts(language, "otherwise_operators")("update_of_zeros", shorter=1)
    assert otherwise(ZEROS, language) == Texts(language, "lines")("otherwise", others=others)
    assert tried_axis(ZEROS) == ("workload", ["training", "training_adam_fused"])
    assert in_code(ZEROS) == "torch.optim.Adam(..., fused=True)"
    told = verdicts.columns(ZEROS, language=language)["verdict_reason"]
    assert "49" in told
    assert verdicts.operator("aten::sqrt", 20.0, ZEROS, language) in told


@pytest.mark.parametrize(
    ("cells", "swept"),
    [
        ({}, ("workload", ["training", "training_adam_fused"])),
        ({"workload": "training_sgd"}, ("workload", ["training_sgd", "training_sgd_fused"])),
        (
            {"workload": "training_loaded"},
            ("workload.optimizer_implementation", ["default", "fused"]),
        ),
        (
            {"execution": "compile", "workload": "training_loaded"},
            ("workload.optimizer_implementation", ["default", "fused"]),
        ),
        ({"workload": "training_adam_fused"}, ("execution", ["eager", "compile"])),
        (
            {"verdict_numbers": json.dumps({"name": "aten::_fused_adam_", "share": 38.0})},
            ("execution", ["eager", "compile"]),
        ),
    ],
)
def test_the_command_fuses_the_update_of_the_runs_own_workload(cells, swept):
    assert tried_axis({**UPDATE, **cells}) == swept


def test_padding_saves_no_more_than_its_matmul_loses():
    row = {**RUN, "verdict": "shape", "verdict_reason": "misaligned", "misaligned": PADDED}
    row |= {"matmuls_below_best_ms": 6.0}
    assert "1.24 of 10.0 ms" in advice(row)
    assert "6.00 of 10.0 ms" in advice({**row, "verdict_reason": "executed"})


@pytest.mark.parametrize("cause", ["no_mfu", "busy_not_useful", "not_explained", "overhead"])
def test_a_trace_is_not_advised_to_record_one(cause):
    row = {**RUN, "verdict": cause}
    usual = Texts("en", "advice")(cause)
    assert advice(row).startswith(usual)
    own = Texts("en", "why")(OF_TRACES[cause]) if cause in OF_TRACES else usual
    assert advice(row, is_read=True).startswith(own)
    assert (own != usual) == (cause != "overhead")
    assert three_lines(row, "a", "GPU", is_read=True).advice == advice(row, is_read=True)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_load_that_spins_by_design_is_told_no_remedy(language):
    row = {**RUN, "model": "spinning", "verdict": "other_operators"}
    assert advice(row, language) == Texts(language, "lines")("by_design")
    assert tried_config(row) == ""


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_at_stake_is_the_time_of_the_parts(language):
    row = {**RUN, "verdict": "overhead"}
    assert "6.00" in advice(row, language)
    assert "10.0" in advice(row, language)
    assert "6.00" not in advice({**row, "idle_ms": None}, language)
    nearly = advice({**row, "time_s": 0.01292, "idle_ms": 12.856}, language)
    assert "12.86" in nearly
    assert "12.92" in nearly
    short = advice({**row, "time_s": 0.000108, "idle_ms": 0.0817}, language)
    assert "81.7" in short
    assert "108 µs" in short.replace("\u00a0", " ")


@pytest.mark.parametrize("language", LANGUAGES)
def test_another_format_shortens_other_parts_too_so_that_no_part_is_named(language):
    row = {**RUN, "verdict": "wrong_precision", "best_below_peak_ms": 3.0, "slow_matmuls_ms": 3.0}
    assert account.read(row).loss("wrong_precision") is not None
    assert " ms" not in advice(row, language)


def test_a_pruned_run_is_tried_with_its_pruning():
    row = {**RUN, "verdict": "launch_bound", "pruned_share": 0.5}
    words = tried_config({**row, "pruning": "two_of_four"}).split()
    assert {"model.pruning=two_of_four", "model.pruned_share=0.5"} <= {*words}
    for plain in ("none", "", None):
        assert "pruning" not in tried_config({**row, "pruning": plain})


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("cause", ["under_used", "low_occupancy", "slow_matmuls"])
def test_a_larger_batch_saves_time_of_a_sample_and_not_of_a_step(cause, language):
    row = {**RUN, "verdict": cause, "useful_ms": 3.0, "slow_matmuls_ms": 4.0, "idle_ms": 3.0}
    told = advice(row, language)
    assert "ms" not in told
    assert account.read(row).loss(cause) is None or "%" in told


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("change", "told", "untold"),
    [
        ({}, ["98 %", "3.2 %"], []),
        ({"mfu_percent": 1e-9}, ["< 0.05 %"], ["e-"]),
        ({"mfu_percent": 0.0}, ["98 %"], ["nan"]),
        ({"mfu_percent": 150.0}, ["150 %"], []),
        ({"mfu_percent": None}, ["98 %"], ["None", "3.2"]),
        ({"utilization_percent": None}, ["3.2 %"], ["98", "None"]),
        ({"utilization_percent": None, "kernel_busy_percent": 41.0}, ["41 %", "3.2 %"], []),
        ({"utilization_percent": None, "mfu_percent": None}, ["10.0 ms"], ["None"]),
        ({"utilization_percent": float("nan"), "mfu_percent": float("nan")}, ["10.0 ms"], ["nan"]),
    ],
)
def test_the_finding_holds_what_is_known_and_nothing_else(language, change, told, untold):
    said = finding({**RUN, **change}, "resnet18", "CPU", language).replace(" %", "%")
    assert said.startswith("resnet18")
    for words in told:
        assert words.replace(" %", "%") in said
    for words in untold:
        assert words not in said


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_lines_stand_in_one_order_and_empty_ones_are_left_out(language):
    row = {**RUN, "verdict": "under_used", "verdict_reason": "under_used"}
    row["verdict_numbers"] = json.dumps({"share": 40.0})
    lines = three_lines(row, "resnet18", "CPU", language).worded(language)
    said = Texts(language, "lines")
    starts = [said("because", reason=""), said("try", advice="")]
    assert len(lines) == 3
    assert lines[1].startswith(starts[0])
    assert lines[2].startswith(starts[1])
    assert len(three_lines(RUN, "resnet18", "CPU", language).worded(language)) == 1


@pytest.mark.parametrize(
    ("row", "device"),
    [
        ({"device": "cpu"}, "CPU"),
        ({"device": "cuda:1"}, "GPU"),
        ({"device": "NVIDIA H100", "kernel_busy_percent": 0.0}, "GPU"),
        ({"device": None, "kernel_busy_percent": None}, "CPU"),
    ],
)
def test_the_device_is_told_by_the_row(row, device):
    assert device_of(row) == device


def test_loads_are_told_from_models_that_people_have():
    assert {"spinning", "tiny_kernels", "wide_linear"} <= {*filter(is_load, names())}
    assert not any(map(is_load, ["gpt2", "resnet50", "simple_cnn", "a_model_of_mine", ""]))


def test_a_file_that_holds_no_model_is_no_load(tmp_path, monkeypatch):
    (tmp_path / "a_list.yaml").write_text("- 1")
    monkeypatch.setattr(models, "FOLDERS", (tmp_path,))
    assert names() == ["a_list"]
    assert not is_load("a_list")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("cause", ["memory_bound", "other_operators"])
def test_a_shorter_format_is_advised_only_where_it_may_help(cause, language):
    run = {**RUN, "verdict": cause}
    text = Texts(language, "otherwise")
    with_format, without = (text(cause, shorter=shorter) for shorter in (1, 0))
    assert with_format != without
    for precision in ("fp32", "tf32"):
        assert with_format in otherwise({**run, "effective_precision": precision}, language)
    for precision in ("bf16", "fp16", "fp8"):
        told = otherwise({**run, "effective_precision": precision}, language)
        assert without in told
        assert with_format not in told
    told = advice(run, language, shorter_helps=False)
    assert without in told
    assert with_format not in told


# What a config sweeps, and a word of the remedy that stands first.
SWEPT = {
    "execution": ("torch.compile", "torch.compile"),
    "batch_size": ("a larger batch", "배치를 키우"),
    "precision": ("fp32", "fp32"),
    "sequence_length": ("lengths", "길이"),
    "workload.loader_workers": ("workers", "워커"),
    "workload": ("without checkpointing", "체크포인팅 없이"),
}


@pytest.mark.parametrize("execution", ["eager", "compile"])
@pytest.mark.parametrize("cause", sorted(BY_KEY))
def test_the_first_remedy_is_the_one_that_the_command_measures(cause, execution):
    row = {**RUN, "verdict": cause, "execution": execution}
    config = dict(word.split("=", 1) for word in tried_config(row).split())
    swept = [key for key, value in config.items() if "," in value]
    for language, place in (("en", 0), ("ko", 1)):
        first = first_remedy(row, language)
        assert advice(row, language).startswith(first)
        for key in swept:
            word = SWEPT[key][place]
            if cause == "wrong_precision":
                word = "TF32"
            assert word in first
        for key, words in SWEPT.items():  # no other one that a command could measure
            if key not in ("precision", "sequence_length", *swept) and swept:
                assert words[place] not in first


@pytest.mark.parametrize("cause", sorted(BY_KEY))
def test_a_loop_is_told_the_line_that_tries_the_remedy(cause):
    row = {**RUN, "verdict": cause}
    loop = three_lines(row, "a", "CPU", is_loop=True)
    assert loop.code == BY_KEY[cause].code
    assert three_lines(row, "a", "CPU").code == ""
    assert (loop.code in loop.worded()[-1]) or not loop.code
    compiled = in_code({**row, "execution": "compile"})
    assert "torch.compile" not in compiled
    if loop.code:
        compile(f"{loop.code} pass" if loop.code.endswith(":") else loop.code, cause, "exec")


def test_most_remedies_of_a_loop_are_a_line_of_code():
    assert sum(bool(cause.code) for cause in BY_KEY.values()) >= 9


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "execution", ["compile", "compile_max_autotune", "static_cache_compile", "jax"]
)
@pytest.mark.parametrize("cause", sorted(BY_KEY))
def test_a_compiled_step_is_not_told_to_compile(cause, execution, language):
    run = {**RUN, "verdict": cause, "execution": execution}
    told = advice(run, language).replace('torch.compile with mode="max-autotune"', "")
    told = told.replace('torch.compile의 mode="max-autotune"', "")
    assert "torch.compile" not in told
    keys = dict(word.split("=", 1) for word in tried_config(run).split())
    assert keys.get("execution", execution) == execution
    if "," in keys.get("batch_size", ""):
        assert " ms" not in told, "a larger batch makes a step longer"


STRANGE = (
    {"verdict": "shape", "verdict_reason": "misaligned", "misaligned": '{"side": 606}'},
    {"verdict": "shape", "verdict_reason": "misaligned", "misaligned": "[1]"},
    {"verdict": "shape", "verdict_reason": "misaligned",
     "misaligned": '{"side": "a", "padded": "b", "ms": "c", "best_ms": {"d": 1}}'},
    {"verdict": "other_operators", "verdict_numbers": '{"name": "aten::mul", "share": "x"}'},
    {"verdict": "other_operators", "verdict_numbers": '{"name": ["aten::mul"], "share": {"a": 1}}'},
    {"verdict": "other_operators", "verdict_numbers": "[]"},
)  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("cells", STRANGE)
def test_cells_of_a_strangers_row_cost_its_specific_remedy_alone(cells, language):
    row = RUN | {"mode": "training", "optimiser_ms": 5.0, "other_operators_ms": 4.0} | cells
    usual = Texts(language, "advice")(cells["verdict"])
    assert usual in advice(row, language) or kind_of_operator(row) == "others"
    verdicts.columns(row, language=language)


WIDE = {
    "time_ci_low_s": 0.008,
    "time_ci_high_s": 0.0125,
    "mfu_ci_low_percent": 2.6,
    "mfu_ci_high_percent": 4.0,
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_wide_interval_stands_beside_mfu_and_the_step(language):
    row = {**RUN, "verdict": "overhead", "verdict_reason": "overhead"}
    narrow = row | {"time_ci_low_s": 0.0099, "time_ci_high_s": 0.0101}
    narrow |= {"mfu_ci_low_percent": 3.1, "mfu_ci_high_percent": 3.3}
    assert finding(narrow, "it", "CPU", language) == finding(row, "it", "CPU", language)
    assert advice(narrow, language) == advice(row, language)
    said = finding(row | WIDE, "it", "CPU", language)
    assert ("2.6" in said, "4.0" in said) == (True, True)
    assert "12" in advice(row | WIDE, language)
    assert "12" not in advice(row, language)


def test_padded_tiles_cost_what_tensor_cores_work_beyond_the_model():
    numbers = json.dumps({"expected": 24.0, "counted": 18.0})
    row = {**RUN, "verdict": "shape", "matmuls_below_best_ms": 5.0, "verdict_numbers": numbers}
    row |= {"idle_ms": 1.0}
    whole = most_saved({**row, "verdict_reason": "tiles"})
    part = most_saved({**row, "verdict_reason": "padding"})
    assert "5.00" in whole
    assert "0.600" in part
    modules = [
        {"depth": 1, "name": "Model", "ms": 9.0, "flops": 2e9, "mfu_percent": 20.0},
        {"depth": 2, "name": "Linear", "ms": 5.0, "flops": 1e9, "mfu_percent": 10.0},
        {"depth": 2, "name": "Conv1D", "ms": 4.0, "flops": 1e9, "mfu_percent": 72.0},
        {"depth": 2, "name": "GELU", "ms": 6.0, "flops": 0.0},
    ]
    row |= {"module_times": json.dumps(modules), "verdict_reason": "padding"}
    assert "Linear" in most_saved(row)
    assert "Linear" not in most_saved({**row, "verdict_reason": "tiles"})


@pytest.mark.parametrize(
    ("time_s", "told"), [(12.92, "12.9 s"), (0.0129, "12.9 ms"), (1.29e-5, "12.9 µs")]
)
def test_what_is_at_stake_is_told_in_the_unit_of_the_step(time_s, told):
    row = {**RUN, "verdict": "overhead", "time_s": time_s, "idle_ms": 600 * time_s}
    said = most_saved({**row, "useful_ms": 400 * time_s})
    assert told in said
    number, _, _ = told.partition(" ")
    assert f"{0.6 * float(number):.2f}"[:3] in said


@pytest.mark.parametrize(
    ("uncounted_percent", "is_lower_bound"),
    [(None, False), (0.4, False), (0.5, True), (30.0, True)],
)
def test_a_share_is_a_lower_bound_where_matmuls_are_not_counted(uncounted_percent, is_lower_bound):
    row = {"mfu_percent": 40.0, "uncounted_percent": uncounted_percent}
    assert used_share(row).startswith("≥") == is_lower_bound


@pytest.mark.parametrize(
    ("cells", "ends"),
    [
        ({"mfu_ci_low_percent": 30.0, "mfu_ci_high_percent": 60.0}, ("30", "60")),
        ({"mfu_ci_low_percent": 30.0}, None),
        ({"time_s": 1.0, "time_ci_low_s": 0.5, "time_ci_high_s": 2.0}, ("20", "80")),
        ({"time_s": 1.0, "time_ci_low_s": 0.99, "time_ci_high_s": 1.01}, None),
    ],
)
def test_a_wide_interval_of_mfu_stands_beside_it(cells, ends):
    told = used_share({"mfu_percent": 40.0} | cells)
    assert told.startswith("40 %")
    assert ("(" in told) == (ends is not None)
    if ends:
        assert all(end in told for end in ends)
