"""Bad configs: one sentence that names key, value and choices; never a traceback, and nothing bad
that passes."""

import os
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bad_yaml import BAD_YAML, BOMB
from support.planted import PLANTED
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.cli import standalone
from mfulab.core.errors import ConfigurationError
from mfulab.lab.planning import composition
from mfulab.lab.planning.checks import MOST_VALUES
from mfulab.lab.planning.composition import compose_experiments
from mfulab.lab.planning.keys import choices
from mfulab.lab.planning.load import device_of, load
from mfulab.lab.planning.overrides import from_snakemake
from mfulab.lab.planning.runs import plan

CONFIG = ROOT / "config"
EXAMPLES = int(os.environ.get("MFULAB_EXAMPLES", "12"))  # 30 at night, `make faults` 2,000


def planned(config, folder=CONFIG):
    return [
        plan(each, *device_of(each.base))
        for each in compose_experiments(from_snakemake(config), folder)
    ]


def told(config, folder=CONFIG):
    """The sentence that a bad config gets."""
    with pytest.raises(ConfigurationError) as error:
        planned(config, folder)
    message = str(error.value)
    assert "\n" not in message
    assert "validation error" not in message
    return message


@pytest.mark.parametrize(
    ("config", "words"),
    few(
        [
            ({"device.type": "tpu"}, ["device.type=tpu", "auto, cpu, cuda"]),
            ({"steps": "profil_step"}, ["steps=profil_step", "Did you mean profile_step"]),
            ({"steps": []}, ["steps=[]", "profile_step", "recorded"]),
            ({"steps": ["profil_step"]}, ["steps=profil_step", "Did you mean profile_step"]),
            ({"report": "ko"}, ["report=ko", "report.language"]),
            ({"exclude": 3}, ["exclude=3", "list"]),
            ({"exclude": ["x"]}, ["exclude.0=x"]),
            ({"batch_size": "@3"}, ["batch_size=@3", "integer"]),
            ({"batch_size": "*"}, ["batch_size=*", "integer"]),
            ({"batch_size": "%3"}, ["batch_size=%3", "integer"]),
            ({"batch_size": True}, ["batch_size=", "true or false"]),
            ({"model": 3}, ["model=3", "mfulab run profile_step --help"]),
            ({"model": ["resnet18", "gpt9"]}, ["model=gpt9", "gpt2"]),
            ({"model": None}, ["model=null: unknown. All ", "mfulab run profile_step --help"]),
            ({"hardware": "../../x"}, ["hardware=../../x", "Slug"]),
            ({"hardware": "tables"}, ["hardware=tables", "no machine's"]),
            ({"hardware": "published"}, ["hardware=published", "no machine's"]),
            ({"batch_size": "shuffle(1,2)"}, ["batch_size=shuffle(1,2)", "seed"]),
            ({"model@x": "1"}, ["model@x=1", "key=value"]),
            ({"hardware": "a,b"}, ["hardware=a,b", "one value"]),
            ({"batch_size": "range(1,1000000000)"}, ["range(1,1000000000)", f"{MOST_VALUES:,}"]),
            ({"batch_size": "range(1,9,0)"}, ["range(1,9,0)", f"{MOST_VALUES:,}"]),
            ({"size": "range(1,100000)"}, ["bench_matmul", "size", f"{MOST_VALUES:,}"]),
            (
                {"experiment": "kernels", "batch_size": "abc"},
                ["batch_size=abc", "integer"],
            ),  # no step of it reads that
            ({"experiment": "kernels", "seed": -1}, ["seed=-1"]),
            ({"timing": 3}, ["timing=3", "timing.windows"]),
            ({"timing.time_limit_s": "inf"}, ["timing.time_limit_s=inf", "2678400"]),
            ({"kernel.block": []}, ["kernel.block=[]"]),
            ({"overrides": "model='x"}, ["overrides=model='x", "quot"]),
            ({"~model": "resnet18"}, ["~model", "key=value"]),
            ({"hydra": 3}, ["hydra=3"]),
            (
                {"model.input_shape": "[99999999999]"},
                ["model.input_shape.0=99999999999", "2147483647"],
            ),
            ({"batch_size": 10**12}, ["batch_size=1000000000000", "2147483647"]),
            ({"size": 10**12}, ["size=1000000000000"]),
            ({"workload.learning_rate": "1e308"}, ["workload.learning_rate=1e+308", "1000"]),
            ({"device.peak_tflop_s.fp32": "1e308"}, ["device.peak_tflop_s.fp32=1e+308", "1000000"]),
            ({"device.peak_tflop_s.nope": 5}, ["device.peak_tflop_s", "nope", "bf16"]),
            ({"device.threads": 100_000}, ["device.threads=100000", "4096"]),
            ({"timing.time_limit_s": "1e300"}, ["timing.time_limit_s=1e+300"]),
            (
                {"experiment": "traces", "trace": "/dev/zero"},
                ["trace=/dev/zero", "not a regular file"],
            ),
            ({"experiment": "traces", "trace": "x" * 5000}, ["xxx", "too long"]),
        ],
        12,
    ),
)
def test_each_kind_of_mistake_has_its_sentence(config, words):
    message = told(config)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("config", "says"),
    few(
        [
            (
                {"model": "resnet5"},
                "model=resnet5: unknown. Did you mean resnet50 or resnet18? All {model}: mfulab run",
            ),
            (
                {"model": "GPT2"},
                "model=GPT2: unknown. Did you mean gpt2 or gpt2_xl? All {model}: mfulab run profile_step ",
            ),
            (
                {"model": "vit"},
                "model=vit: unknown. Did you mean vit_b_16? All {model}: mfulab run profile_step --help.",
            ),
            (
                {"model": "qqqq"},
                "model=qqqq: unknown. All {model}: mfulab run profile_step --help.",
            ),
            ({"kernel": "triton_plan"}, "kernel=triton_plan: unknown. Did you mean triton_plain"),
            (
                {"kernel": "qqqq"},
                "kernel=qqqq: unknown. All {kernel}: mfulab run bench_matmul --help.",
            ),
            (
                {"experiment": "qqqq"},
                "experiment=qqqq: unknown. All {experiment}: {folder}/experiment/.",
            ),
            ({"precision": "qqqq"}, "precision=qqqq: unknown. Choices: amp_bf16, "),
            ({"qqqq": 3}, "key=qqqq: unknown. All "),
            ({"qqqq.x": 3}, "key=qqqq.x: unknown. All "),
            ({"timing.qqqq": 3}, "key=timing.qqqq: unknown. Choices: timing.patience_s, "),
        ],
        5,
    ),
)
def test_of_many_choices_the_nearest_are_named_and_where_all_are_listed(config, says):
    counts = {group: len(choices(CONFIG, group)) for group in ("model", "kernel", "experiment")}
    message = told(config)
    assert message.startswith(says.format(folder=CONFIG, **counts))
    assert len(message) < 300


def test_the_command_that_a_message_names_lists_each_choice():
    for step, groups in {
        "profile_step": ("model", "workload", "execution"),
        "bench_matmul": ("kernel",),
    }.items():
        listed = set(re.findall(r"[^\s=|]+", standalone.help_of(step)))
        assert [
            name for group in groups for name in choices(CONFIG, group) if name not in listed
        ] == []


@pytest.mark.parametrize(
    ("text", "words"),
    few(
        [
            ("", ["empty", "steps"]),
            ("# nothing\n", ["empty"]),
            ("- a\n- b\n", ["holds a list"]),
            ("steps: [bench_matmul]\n", ["# @package _global_"]),
            ("# @package _global_\nbtch_size: 3\n", ["btch_size", "Did you mean batch_size"]),
            ("# @package _global_\nsteps: [bench_matmul\nsize: 3\n", ["line 3", "not YAML"]),
            (
                "# @package _global_\nhydra: {sweeper: {params: {sise: 1}}}\n",
                ["sise", "Did you mean size"],
            ),
            (
                "# @package _global_\nhydra: {sweeper: {params: [1]}}\n",
                ["hydra.sweeper.params=[1]"],
            ),
            ("# @package _global_\nhydra: 3\n", ["hydra", "params"]),
            (
                "# @package _global_\nhydra: {sweeper: {params: {kernel: torhc}}}\n",
                ["kernel=torhc", "Did you mean torch"],
            ),
            ("# @package _global_\nhydra: {sweeper: {params: {size: [1, 2]}}}\n", ["size=[1, 2]"]),
            (
                "# @package _global_\ntiming: {window: 3}\n",
                ["timing.window", "Did you mean timing.windows"],
            ),
            (
                "# @package _global_\nexclude: [{modle: gpt2, because: x}]\n",
                ["exclude=modle", "Did you mean model"],
            ),
            ("# @package _global_\nexclude: [{model: gpt2}]\n", ["exclude=", "because"]),
            ("# @package _global_\nbatch_size: x\n", ["batch_size=x", "integer"]),
            (b"\xff\xfe", ["UTF-8"]),
        ],
        8,
    ),
)
def test_a_mistake_in_an_experiments_file_names_it(tmp_path, text, words):
    folder = tmp_path / "config"
    shutil.copytree(CONFIG, folder)
    path = folder / "experiment" / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = told({"experiment": "mine"}, folder)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("place", ["experiment/miniature.yaml", "model/mine.yaml", "config.yaml"])
def test_what_is_no_file_of_the_config_is_named(tmp_path, what, place):
    """Neither remembering a plan, nor composing one, nor a script's own words open it."""
    folder = tmp_path / "config"
    shutil.copytree(CONFIG, folder)
    (folder / place).unlink(missing_ok=True)
    PLANTED[what](folder / place)
    for read in (
        lambda: load({"experiment": "miniature"}, folder),
        lambda: compose_experiments(["experiment=miniature"], folder, sweeps=False),
    ):
        with pytest.raises(ConfigurationError, match=place):
            read()


def test_an_own_model_over_tokens_may_be_swept_in_both_its_sizes():
    swept = "model._target_=torch.nn.Identity model.vocabulary_size=10,20 model.sequence_length=4,8"
    [found] = planned(
        {"experiment": "miniature", "steps": ["count_flops"], "overrides": swept, "batch_size": 1}
    )
    assert sum(run.step == "count_flops" for run in found.runs) == 4


@pytest.fixture
def compose_once(monkeypatch):
    """Composes the same words once: the config tree stays the same here."""
    real = composition.compose

    @cache
    def remembered(name, overrides, hydra):
        return real(name, overrides=list(overrides), return_hydra_config=hydra)

    def compose(name, overrides=(), return_hydra_config=False):
        return remembered(name, tuple(overrides), return_hydra_config)

    monkeypatch.setattr(composition, "compose", compose)


NUMBERS = [
    "batch_size",
    "seed",
    "sum_length",
    "timing.windows",
    "timing.window_time_s",
    "workload.learning_rate",
]
NUMBERS += [
    "workload.gradient_accumulation",
    "timing.time_limit_s",
    "device.threads",
    "device.peak_tflop_s.fp32",
]
CHOICES = [
    "counter",
    "workload.mode",
    "workload.optimizer",
    "precision.dtype",
    "execution.mode",
    "device.type",
]
GROUPS = ["model", "workload", "precision", "execution", "kernel", "device", "experiment"]
MAPPINGS = ["timing", "profile", "report", "model.arguments", "device.peak_tflop_s"]
words = st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=9).filter(
    lambda text: text not in ("null", "true", "false", "inf", "nan", "yes", "off")
)
marks = st.builds("{}{}".format, st.sampled_from("@*%&!"), words)
bad = st.one_of(
    st.tuples(
        st.sampled_from(NUMBERS),
        words | marks | st.sampled_from([-1, "-1.5", "[1,2]", "{a: 1}", "inf", "nan"]),
    ),
    st.tuples(st.sampled_from(CHOICES), words | st.integers() | st.just("[x]")),
    st.tuples(
        st.sampled_from(GROUPS),
        words.map("no_such_{}".format) | st.integers() | st.lists(words) | st.none(),
    ),
    st.tuples(st.sampled_from(MAPPINGS), words | st.integers() | st.booleans()),
    st.tuples(words.map("no_such_{}".format), words | st.integers()),
    st.tuples(words.map("timing.no_such_{}".format), st.integers()),
    st.tuples(st.just("size"), words | st.sampled_from([0, -4, "4x", "1x2x3x4x5", "x4", "0x4x4"])),
    st.tuples(st.just("steps"), words | st.integers() | st.lists(words)),
    st.tuples(
        st.just("hardware"),
        st.sampled_from(["..", "../x", "/etc", "A100", "a b", "a/b", "-x", "a,b", 7]),
    ),
    st.tuples(
        st.sampled_from(NUMBERS[:4]),
        st.sampled_from(["range(1,1e9)", "interval(1,2)", "range(1,9,0)"]),
    ),
    st.tuples(st.sampled_from(["report.language", "exclude"]), words | st.integers()),
    st.tuples(st.sampled_from(["profile.trace", "workload.checkpointing"]), words | st.integers(2)),
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(mistake=bad, experiment=st.sampled_from(["miniature", "kernels", "counters"]))
def test_no_bad_config_passes_or_ends_in_a_traceback(compose_once, mistake, experiment):
    key, given_ = mistake
    message = told(
        {"experiment": experiment, key: given_} if key != "experiment" else {key: given_}
    )
    assert len(message) <= 4001
    assert key.split(".")[0] in message


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    key=st.sampled_from(
        [*NUMBERS, *CHOICES, *GROUPS[:-1], *MAPPINGS, "size", "steps", "hardware", "overrides", "x"]
    ),
    text=st.text(max_size=12) | st.text("0123456789,.()[]{}=:'\"$@*%~+-_abx \\\n", max_size=12),
)
def test_any_text_is_planned_or_gets_one_sentence(compose_once, key, text):
    try:
        for each in planned({"experiment": "miniature", key: text}):
            assert all(
                re.fullmatch(r"[^/\0]+", run.name) and ".." not in Path(run.folder).parts
                for run in each.runs
            )
    except ConfigurationError as error:
        is_one_line = str(error).isprintable()
        assert is_one_line


@pytest.mark.slow
@pytest.mark.workflow
@settings(
    max_examples=min(60, max(1, EXAMPLES // 30)),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(mistake=bad)
def test_no_bad_config_ends_the_command_in_a_traceback(make_project, mistake):
    key, given_ = mistake
    words = [f"overrides={key}='{given_}'"] if "." in key else [f"{key}={given_}"]
    if key != "experiment":
        words.append("experiment=miniature")
    done = make_project().snakemake("-n", "rows", "--config", *words, check=False)
    assert done.returncode
    assert "Traceback" not in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("mfulab: ")]


MODEL = "steps: [count_flops]\nmodel: {name: m, _target_: torch.nn.Linear, input_shape: [4], arguments: {x: VALUE}}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"defaults: [nope]\n{MODEL}", ["experiment/nope"]),
        (f"seed: ???\n{MODEL}", ["seed=???", "missing"]),
        (f"1.5: 3\n{MODEL}", ["1.5", "no key"]),
        (MODEL.replace("VALUE", "{1.5: 2}"), ["model.arguments.x.1.5", "no key"]),
        (MODEL.replace("VALUE", ".nan"), ["model.arguments.x=nan", "finite"]),
        (MODEL.replace("VALUE", "[1, {y: -.inf}]"), ["model.arguments.x.1.y=-inf", "finite"]),
        (BOMB + MODEL, ["x.yaml", "aliases"]),
        (f"a: &a [*a]\n{MODEL}", ["x.yaml"]),
    ],
)
def test_what_hydra_or_json_would_take_for_something_else_is_one_sentence(tmp_path, text, words):
    """Also within seconds: aliases of a few lines stand for as many values as one likes."""
    shutil.copytree(CONFIG, tmp_path / "config")
    (tmp_path / "config/experiment/x.yaml").write_text(f"# @package _global_\n{text}")
    said = told({"experiment": "x"}, tmp_path / "config")
    assert all(word in said for word in words), said


# Hydra reads lists of any depth, and dates as texts.
REFUSED = [name for name in BAD_YAML if name not in ("closed brackets", "a date that is none")]


@pytest.mark.parametrize("name", few(REFUSED))
@pytest.mark.parametrize("place", few(["experiment/mine", "precision", "model/mine", "config"], 2))
def test_a_file_of_the_config_that_is_no_yaml_is_one_sentence(tmp_path, monkeypatch, place, name):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(CONFIG, tmp_path / "config")
    (tmp_path / f"config/{place}.yaml").write_text(f"# @package _global_\n{BAD_YAML[name]}")
    asked = {"experiment": "mine"} if "experiment" in place else {"experiment": "miniature"}
    if "model" in place:
        asked["model"] = "mine"
    said = told(asked, tmp_path / "config")
    assert f"{place}.yaml" in said
    assert len(said) < 300
    assert not (tmp_path / "owned").exists()
