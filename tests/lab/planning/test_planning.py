"""From an experiment to runs: expansion, exclusion, names, and messages."""

import itertools
import json
import re
import shlex
import shutil
from collections import Counter
from functools import cache
from types import SimpleNamespace

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from snakemake.target_jobs import parse_target_jobs_cli_args
from snakemake_interface_executor_plugins.utils import TargetSpec, encode_target_jobs_cli_args
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.core.errors import ConfigurationError
from mfulab.core.language import LANGUAGES, catalogue
from mfulab.core.replicates import base_name
from mfulab.lab.planning import keys, load, runs
from mfulab.lab.planning.composition import (
    Composition,
    Value,
    _hydra,
    complete,
    compose_experiments,
)
from mfulab.lab.planning.naming import LONGEST, run_name
from mfulab.lab.planning.overrides import from_snakemake
from mfulab.lab.planning.runs import holds, plan
from mfulab.lab.planning.snakemake_workarounds import keep_commas
from mfulab.measurements.bench_matmul import BenchMatmulConfig
from mfulab.measurements.registry import MEASUREMENTS
from mfulab.mfu.causes import CAUSES

CONFIG = ROOT / "config"
EXPERIMENTS = sorted(path.stem for path in (CONFIG / "experiment").glob("*.yaml"))
UNFINISHED = "traces"  # whose trace has no default
# planned one by one below
ALONE = {f"experiment={name}" for name in EXPERIMENTS if name != UNFINISHED}


def planned_anew(*overrides, hardware="test-4c", device="cpu"):
    [composition] = compose_experiments(overrides, CONFIG)
    return plan(composition, hardware, device)


planned = cache(planned_anew)  # a plan that no test changes


def test_what_is_emulated_is_swept_once_and_stands_beside_fp32_s_ceiling():
    """Planned natively nothing changes; a format that the user names is measured in full."""

    def of(*overrides, emulated):
        [composition] = compose_experiments(
            ["experiment=quickstart", "replicates=1", *overrides], CONFIG
        )
        return plan(composition, "test-4c", "cpu", emulated)

    def names(found, precision="precision=bf16"):
        return {run.name for run in found.runs if precision in run.name and run.step != "ceilings"}

    native, emulated = of(emulated=()), of(emulated={"bf16"})
    assert len(names(native)) > 6
    assert names(emulated) == {
        "kernel=torch,size=128,precision=bf16,timing=short",
        "model=simple_cnn,workload=inference,batch_size=1,precision=bf16,execution=eager,timing=short",
    }
    assert names(native, "precision=fp32") == names(emulated, "precision=fp32")
    seen = [run.name for run in by_step(emulated, "ceilings") if "bf16" in run.name]
    assert seen == ["ceiling=bf16"]
    expected = {each["because"] for each in native.excluded}
    assert {each["because"] for each in emulated.excluded} > expected
    asked = of("precision=bf16", "model=resnet18", emulated={"bf16"})
    assert len(names(asked)) == len(names(of("precision=bf16", "model=resnet18", emulated=())))
    assert "ceiling=fp32" in {run.name for run in by_step(asked, "ceilings")}


def leaves_other_formats_as_they_are(native, emulated):
    """An emulated format takes away runs of its own, and adds a ceiling of fp32 at most."""
    narrow = [
        run for run in native.runs if run.folder not in {each.folder for each in emulated.runs}
    ]
    assert all(
        any(f"={name}" in run.name for name in ("bf16", "fp16", "amp_bf16", "amp_fp16", "int8"))
        or run.step == "count_flops"
        for run in narrow
    )
    assert {run.folder for run in emulated.runs} - {run.folder for run in native.runs} <= {
        "test-4c/ceilings/ceiling=fp32"
    } | {f"test-4c/ceilings/ceiling=fp32,replicate={place}" for place in range(2, 9)}


def test_integers_that_replace_fp32_have_their_own_ceiling():
    found = planned("experiment=quantised", "replicates=1")
    assert "ceiling=int8" in {run.name for run in by_step(found, "ceilings")}


def by_step(plan_, step):
    return [run for run in plan_.runs if run.step == step]


def test_an_experiment_s_one_value_of_a_nested_key_counts_and_a_user_s_goes_before_it():
    for override, rate in (((), 1e-5), (("workload.learning_rate=0.01",), 0.01)):
        runs = by_step(planned("experiment=frameworks", *override), "profile_step")
        assert {run.config["workload"]["learning_rate"] for run in runs} == {rate}
        assert all(f"workload.learning_rate={rate}" in run.name for run in runs)


@pytest.mark.parametrize(
    "experiment", few([*EXPERIMENTS[::3], *EXPERIMENTS[1::3], *EXPERIMENTS[2::3]], 8)
)
def test_every_experiment_plans_valid_runs_and_emulation_costs_its_format_alone(
    experiment, tmp_path
):
    (tmp_path / "step.json").write_text("{}")
    traces = [f"trace={tmp_path / 'step.json'}"] if experiment == UNFINISHED else []
    [composition] = compose_experiments([f"experiment={experiment}", *traces], CONFIG)
    native, emulated = (
        plan(composition, "test-4c", "cpu", names) for names in ((), {"bf16", "fp16", "int8"})
    )
    leaves_other_formats_as_they_are(native, emulated)
    for found in (native.runs, plan(composition, "test-4c", "cuda").runs):
        assert len({run.folder for run in found}) == len(found)
        for run in found:
            valid = MEASUREMENTS[run.step].config.model_validate(run.config)
            assert valid.model_dump(mode="json", by_alias=True) == run.config


@pytest.mark.parametrize("config", few(sorted({cause.remedy for cause in CAUSES} - ALONE), 4))
def test_a_remedy_s_command_measures_something_as_it_is_printed(config):
    given = dict(word.split("=", 1) for word in shlex.split(config))
    runs = planned(
        *complete(from_snakemake({key: yaml.safe_load(value) for key, value in given.items()}))
    ).runs
    assert {"profile_step", "bench_matmul", "count_flops"} & {run.step for run in runs}


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_nested_key_that_an_advice_names_is_one_of_the_config(language):
    named = set(re.findall(r"\b(\w+\.\w+=\w+)", " ".join(catalogue(language)["advice"].values())))
    assert "profile.trace=true" in named
    assert planned("experiment=miniature", *sorted(named)).runs


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_key_of_an_experiment_says_what_it_is_for(experiment):
    text = (CONFIG / f"experiment/{experiment}.yaml").read_text()
    lines = text.partition("\nexclude:")[0].splitlines()
    for above, line in itertools.pairwise(lines):
        key, colon, _ = line.strip().partition(":")
        if colon and not key.startswith("#") and key not in ("hydra", "sweeper", "params"):
            assert "# " in line or above.strip().startswith("# "), line


@pytest.mark.parametrize(
    "more",
    few([["kernel.block=[8,8]", "model.task=classification", "execution.dynamic=true"], []], 0),
)
def test_an_option_is_what_hydra_composes(more):
    """Taken from its file alone, or composed where something else touches its group."""
    swept = {"model": "gpt2,lstm", "kernel": "numpy,triton_plain"}
    swept |= {"execution": "script,compile", "precision": "bf16,tf32"}
    words = ["experiment=quickstart", *more]
    [composition] = compose_experiments(
        [*words, *(f"{group}={names}" for group, names in swept.items())], CONFIG
    )
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG)):
        for group in swept:
            for value in composition.axes[group]:
                composed = OmegaConf.to_container(
                    compose("config", [*words, f"{group}={value.label}"]), resolve=True
                )
                assert value.content == composed[group], (group, value.label)


def test_each_trace_is_a_run_keyed_by_its_content(tmp_path):
    for name in ("a.json", "b.json.gz", "a.txt"):
        (tmp_path / name).write_text(name)
    first = planned_anew("experiment=traces", f"trace={tmp_path}")
    (tmp_path / "a.json").write_text("changed")
    second = planned_anew("experiment=traces", f"trace={tmp_path}")
    names = [run.name for run in by_step(first, "read_trace")]
    assert names == ["trace=a", "trace=b"]
    digests = [
        [run.config["trace"]["digest"] for run in by_step(each, "read_trace")]
        for each in (first, second)
    ]
    assert digests[0][0] != digests[1][0]
    assert digests[0][1] == digests[1][1]


def test_traces_that_are_not_there_are_one_message():
    with pytest.raises(ConfigurationError, match="trace="):
        planned("experiment=traces", "trace=nowhere/")


def test_without_a_trace_the_shipped_example_is_read_and_named(capsys, monkeypatch):
    (path,) = [trace["path"] for trace in runs.traces(None)]
    assert path == runs.EXAMPLE
    assert f"the example {runs.EXAMPLE} is read; yours: trace=" in capsys.readouterr().err
    monkeypatch.setattr(runs, "EXAMPLE", "nowhere.json.gz")
    with pytest.raises(ConfigurationError, match="give a file, a folder or a glob"):
        next(runs.traces(None))


def test_a_group_reads_the_same_whatever_is_chosen_in_the_others():
    """The ground on which each option is composed once and not once a combination."""
    groups = {name: keys.choices(CONFIG, name) for name in keys.groups(CONFIG)}
    del groups["experiment"]
    groups["model"].remove("own")  # needs a target
    with _hydra(CONFIG):
        default = OmegaConf.to_container(compose("config"), resolve=True)
        for group, options in groups.items():
            config = OmegaConf.to_container(
                compose("config", overrides=[f"{group}={options[-1]}"]), resolve=True
            )
            for other in groups:
                assert other == group or config[other] == default[other]


def test_a_key_that_config_yaml_does_not_hold_yet_is_a_key_an_override_and_an_axis(tmp_path):
    folder = tmp_path / "config"
    shutil.copytree(CONFIG, folder)
    path = folder / "config.yaml"
    path.write_text(re.sub(r"^sum_length:.*\n", "", path.read_text(), flags=re.MULTILINE))
    narrow = ["experiment=number_formats", "precision=fp32"]
    cases = ([], {4096}), (["sum_length=64"], {64}), (["sum_length=64,128"], {64, 128})
    for words, lengths in cases:
        [found] = compose_experiments([*narrow, *words], folder)
        runs = by_step(plan(found, "test-4c", "cpu"), "number_formats")
        assert {run.config["sum_length"] for run in runs} == lengths


def test_a_choice_is_a_line_a_file_of_that_name_or_a_kernel_s_module(tmp_path):
    folder = tmp_path / "config"
    shutil.copytree(CONFIG, folder)
    (folder / "precision").mkdir()
    (folder / "precision/bf16.yaml").write_text("name: bf16\ndtype: bfloat16\nautocast: true\n")
    (folder / "precision/mine.yaml").write_text("name: mine\ndtype: float16\n")
    [found] = compose_experiments(
        ["experiment=number_formats", "precision=glob([bf*,fp16,m*])"], folder
    )
    assert {value.label: value.content["autocast"] for value in found.axes["precision"]} == {
        "bf16": True,  # its file goes before the line
        "fp16": False,
        "mine": False,
    }
    kernel = keys.derived(CONFIG, "kernel")
    assert kernel["cutile"] == {"name": "cutile", "_target_": "mfulab.kernels.cutile.CuTile"}
    assert not {"torch", "cuda_c", "base"} & set(kernel), (
        "a file of config/kernel, a base of others, no kernel"
    )
    assert {"torch", "cutile"} <= set(keys.choices(CONFIG, "kernel"))


def test_a_kernel_that_was_added_makes_another_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "PACKAGE", tmp_path)
    (tmp_path / "kernels").mkdir()
    before = load.load({"hardware": "cpu-of-mine", "experiment": "recorded"}, CONFIG).cached
    (tmp_path / "kernels/mine.py").write_text("class Mine(MatmulKernel):\n    adds = 'nothing'\n")
    assert load.load({"hardware": "cpu-of-mine", "experiment": "recorded"}, CONFIG).cached != before


def test_a_table_that_is_none_is_one_message(tmp_path):
    folder = tmp_path / "config"
    shutil.copytree(CONFIG, folder)
    (folder / "precision.yaml").write_text("fp32: float32\n")
    with pytest.raises(ConfigurationError, match=r"precision\.yaml: give a line for each choice"):
        compose_experiments(["experiment=number_formats"], folder)


def test_a_product_of_models_and_kernels_costs_neither_a_kernel_a_model_nor_a_model_a_kernel():
    narrow = ("model=resnet18,simple_cnn", "kernel=numpy,torch", "batch_size=1", "size=64")
    result = planned("experiment=quickstart", "replicates=1", *narrow)
    assert len(by_step(result, "bench_matmul")) == 3  # NumPy has no bf16
    assert len(by_step(result, "profile_step")) == 2 * 2 * 2 - 1  # resnet18 trains in fp32 alone
    assert len(by_step(result, "count_flops")) == 2  # shared by workloads and precisions


def test_a_ceiling_is_measured_by_several_processes_even_where_a_run_is_by_one():
    result = planned(
        "experiment=quickstart", "replicates=1", "model=simple_cnn", "steps=[profile_step]"
    )
    found = Counter(base_name(run.name) for run in by_step(result, "ceilings"))
    assert found == {f"ceiling={ceiling}": 4 for ceiling in ("fp32", "bf16", "memory")}
    assert not [run for run in by_step(result, "profile_step") if "replicate" in run.name]


def test_a_new_batch_size_adds_only_its_runs():
    before, after = (
        {run.folder: run.config for run in planned("experiment=quickstart", sizes).runs}
        for sizes in ("batch_size=1,4", "batch_size=1,4,16")
    )
    assert before.items() <= after.items()
    assert all("batch_size=16" in folder for folder in after.keys() - before.keys())


def test_every_run_is_joined_with_runs_of_the_same_plan():
    result = planned("experiment=quickstart")
    folders = {run.folder for run in result.runs}
    assert all(need in folders for run in result.runs for need in run.needs.values())
    assert all(
        run.needs.keys() == {"flops", "compute", "memory"}
        for run in by_step(result, "profile_step")
    )


def test_a_swept_nested_key_stands_in_the_name():
    narrow = ("kernel=torch", "size=64", "precision=fp32", "replicates=1")
    result = planned("experiment=quickstart", "kernel.block=[8,8],[16,16]", *narrow)
    names = [run.name for run in by_step(result, "bench_matmul")]
    found = [name.split("kernel.block=")[1] for name in names]
    assert found == ["8x8,timing=short", "16x16,timing=short"]


def test_what_differs_from_the_defaults_stands_in_the_name_and_a_peak_does_not():
    given = ("timing.windows=9", "device.threads=2", "device.peak_tflop_s.fp32=3")
    result = planned("experiment=quickstart", *given)
    for run in by_step(result, "profile_step"):
        assert "timing.windows=9" in run.name
        assert "device.threads=2" in run.name
        assert "peak" not in run.name
        assert run.config["device"]["peak_tflop_s"] == {}
    assert {r.config["device"]["peak_tflop_s"]["fp32"] for r in by_step(result, "ceilings")} == {3}


def test_processes_are_short_and_what_the_user_sets_stays():
    sweep = ("experiment=quickstart", "model=simple_cnn", "replicates=1")

    def timing(*overrides, device="cpu"):
        run = by_step(planned(*sweep, *overrides, device=device), "profile_step")[0]
        return run.config["timing"]["window_time_s"], run.config["timing"]["patience_s"]

    assert timing() == (0.1, 0.2)
    assert timing(device="cuda") == (0.4, 0.4)
    assert timing("short_processes=false") == (None, None)
    assert timing("timing.window_time_s=0.7") == (0.7, 0.2)


def test_the_reports_rows_are_planned_or_all():
    assert planned("experiment=miniature").shown == "planned"
    assert planned("experiment=miniature", "report.rows=all").shown == "all"
    with pytest.raises(ConfigurationError, match=r"report\.rows=mine.*all, planned"):
        planned("experiment=miniature", "report.rows=mine")


def test_a_recording_alone_is_shown_without_a_run():
    shown = planned("experiment=miniature", "report.recorded=amd-epyc-2c", "report.text=kernels")
    assert (shown.runs, shown.recorded, shown.text) == ([], "amd-epyc-2c", "kernels")
    assert planned("experiment=miniature").runs
    with pytest.raises(
        ConfigurationError, match=r"report\.recorded=amd: unknown. Choices: amd-epyc-2c, "
    ):
        planned("experiment=miniature", "report.recorded=amd")
    with pytest.raises(ConfigurationError, match=r"report\.text=labs.*kernels"):
        planned("experiment=miniature", "report.text=labs")


def test_the_reports_language_is_no_part_of_any_run():
    english = planned("experiment=miniature")
    korean = planned("experiment=miniature", "report.language=ko")
    assert (english.language, korean.language) == ("en", "ko")
    found = {run.folder: run.text for run in english.runs}
    assert found == {run.folder: run.text for run in korean.runs}
    assert english.manifest == korean.manifest


def test_the_manifest_tells_what_the_user_gave():
    manifest = json.loads(
        planned("experiment=miniature", "batch_size=2", "timing.windows=3").manifest
    )
    assert manifest["overrides"] == ["batch_size=2", "timing.windows=3"]
    [composition] = compose_experiments(["experiment=miniature", *manifest["overrides"]], CONFIG)
    found = [run["run"] for run in manifest["runs"]]
    assert found == [run.name for run in plan(composition, "test-4c", "cpu").runs]


def test_an_exclusion_holds_for_the_steps_that_read_its_axes():
    rule = {"kernel": "numba_*", "size": [4096, 8192], "because": "slow"}
    assert holds(rule, {"kernel": "numba_naive", "size": "4096"})
    assert not holds(rule, {"kernel": "torch", "size": "4096"})
    assert not holds(rule, {"kernel": "numba_naive", "size": "64"})
    assert not holds(rule, {"model": "gpt2"})


@given(st.text(min_size=1, max_size=300))
def test_names_are_file_names_and_differ_where_values_do(text):
    config = planned_matmul()
    name = run_name(config, {"kernel.option": text})
    other = run_name(config, {"kernel.option": text + "!"})
    assert "/" not in name
    assert len(name.encode()) <= LONGEST
    assert name != other


def planned_matmul():
    precision = {"name": "fp32", "dtype": "float32"}
    return BenchMatmulConfig(
        kernel={"name": "torch", "_target_": "a.b"}, size=64, precision=precision
    )


def test_shapes():
    assert planned_matmul().shape == (1, 64, 64, 64)
    assert planned_matmul().model_copy(update={"size": "1x4096x512"}).shape == (1, 1, 4096, 512)
    assert planned_matmul().model_copy(update={"size": "8x1x2x3"}).shape == (8, 1, 2, 3)


@pytest.mark.parametrize(
    ("override", "words"),
    few(
        [
            ("experiment=quikstart", ["experiment=quikstart", "Did you mean quickstart"]),
            ("precision=fp12", ["precision=fp12", "bf16", "fp32"]),
            ("replicates=0", ["replicates=0: must be greater than or equal to 1."]),
            ("replicates=true", ["replicates=True: give a value, not true or false."]),
            ("model._target_=torch.nn.Linear", ["input_shape"]),
            ("device=H100", ["device=H100: give its kind. hardware=", "Choices: auto, cpu, cuda"]),
            ("device=gpu", ["device=gpu: unknown."]),
            ("model=resnet19", ["model=resnet19", "Did you mean resnet18"]),
            ("batch_size=0", ["batch_size=0", "greater than 0"]),
            ("budget_min=0", ["budget_min=0", "greater than 0"]),
            ("budget_min=-1", ["budget_min=-1", "greater than 0"]),
            ("budget_min=abc", ["budget_min=abc", "number"]),
            ("budget_min=nan", ["budget_min=nan", "finite"]),
            ("budget_min=1,2", ["budget_min=1,2", "one value for all runs"]),
            ("batch_size=two", ["batch_size=two", "integer"]),
            ("batchsize=4", ["batchsize", "Did you mean batch_size"]),
            ("timing.window=3", ["timing.window", "Did you mean timing.windows"]),
            ("size=12y", ["size=12y", "MxNxK"]),
            ("batch_size=interval(1,2)", ["interval", "choice"]),
            ("steps=[profile]", ["steps=profile", "profile_step"]),
            ("batch_size", ["batch_size", "key=value"]),
            ("model=", ["model=: unknown. All ", ": mfulab run profile_step --help."]),
            ("model=resnet18 batch_size=1", ["model=resnet18 batch_size=1", "key=value"]),
            ("timing.windows=[5", ["timing.windows=[5", "key=[a,b]"]),
            ("model=glob(nothing*)", ["model=glob(nothing*)", "matches nothing"]),
            ("+bach_size=4", ["bach_size", "Did you mean batch_size"]),
            ("report.language=fr", ["report.language=fr", "Choices: en, ko"]),
            ("replicates=100", ["replicates=100: must be less than or equal to 99."]),
            ("replicates=1.5", ["replicates=1.5: must be a valid integer"]),
            ("replicates=2,3", ["replicates=2,3: one value for all runs."]),
            ("report.language=en,ko", ["report.language=en,ko", "one value for all runs"]),
        ],
        11,
    ),
)
def test_a_mistake_gets_one_message_that_names_key_value_and_choices(override, words):
    with pytest.raises(ConfigurationError) as error:
        planned(override)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_an_own_model_needs_only_its_target_and_input():
    result = planned(
        "model._target_=torch.nn.Identity", "model.input_shape=[3,8,8]", "precision=fp32"
    )
    names = {run.config["model"]["_target_"] for run in by_step(result, "profile_step")}
    assert names == {"torch.nn.Identity"}


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_runs_are_as_many_as_the_product_of_the_axes_that_a_step_reads(kernels, sizes, replicates):
    kernel_axis = [Value(k, {"name": k, "_target_": "a.b", "block": None}) for k in kernels]
    size_axis = [Value(str(2**n), 2**n) for n in range(sizes)]
    base = {
        "report": {"language": "en", "rows": "planned"},
        "steps": ["bench_matmul"],
        "exclude": [],
        "kernel": {"name": "a", "_target_": "a.b", "block": None},
        "size": 1,
        "precision": {"name": "fp32", "dtype": "float32"},
        "device": {"name": "cpu", "type": "cpu", "threads": None, "peak_tflop_s": {}},
        "timing": {},
        "seed": 0,
        "replicates": replicates,
        "ceiling_replicates": None,
    }
    axes = {"kernel": kernel_axis, "size": size_axis, "model": [Value("x", {}), Value("y", {})]}
    result = plan(Composition("test", base, {"kernel": "a"}, axes, {}), "test-4c", "cpu")
    runs = by_step(result, "bench_matmul")
    assert len(runs) == len(kernels) * sizes * replicates
    assert len({base_name(run.name) for run in runs}) == len(kernels) * sizes


def test_a_cluster_job_understands_the_name_of_its_run() -> None:
    """As Snakemake's own parser leaves it, which splits at commas: when it no longer does, this
    changes nothing."""
    name = "kernel=torch,size=64,precision=fp32,timing.windows=2"
    [argument] = encode_target_jobs_cli_args(
        [TargetSpec("bench_matmul", {"hardware": "nvidia-a", "run": name})]
    )
    [target] = parse_target_jobs_cli_args([argument])
    workflow = SimpleNamespace(
        dag_settings=SimpleNamespace(target_jobs=[target]), get_rule=str.upper
    )
    keep_commas(workflow)
    for _ in range(2):  # a job may ask again
        assert workflow.get_rule("bench_matmul") == "BENCH_MATMUL"
        assert target.wildcards_dict == {"hardware": "nvidia-a", "run": name}
