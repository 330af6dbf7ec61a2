"""Adding a thing takes few files: each test writes them into a copy and runs it there."""

import csv
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.workflow_copy import ROOT, Project, copy_workflow, fake_steps

from mfulab.measurements.published import PUBLISHED
from mfulab.measurements.registry import MEASUREMENTS

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("adding")]


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def row(folder: Path, pattern: str) -> dict[str, str]:
    (path,) = (folder / "results").glob(pattern)
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.DictReader(file))


@pytest.mark.slow
def test_a_number_format_is_a_line_of_the_table_and_its_config(make_project):
    project = make_project(with_source=True)
    table = project.folder / "src/mfulab/core/formats.py"
    line = '        Format("int8", "int8"'
    new = f'        Format("fp8_e5m2", "float8_e5m2", "bfloat16", 8, 1, 5, 3.4e-3),\n{line}'
    replace(table, line, new)
    with (project.folder / "config/precision.yaml").open("a", encoding="utf-8") as file:
        file.write("fp8_e5m2: { dtype: float8_e5m2 }\n")
    project.snakemake("rows", "--config", "experiment=number_formats", "precision=fp8_e5m2")
    probed = row(project.folder, "number_formats/precision=fp8_e5m2/row.csv")
    assert (probed["status"], probed["exponent_bits"], probed["mantissa_bits"]) == ("ok", "5", "2")


@pytest.mark.slow
def test_a_kernel_is_a_module(make_project):
    project = make_project(with_source=True)
    kernel = """
from mfulab.kernels.cpu_numpy import Numpy


class NumpyAgain(Numpy):
    after = "numpy"
    adds = "nothing"
"""
    (project.folder / "src/mfulab/kernels/numpy_again.py").write_text(kernel)
    short = "timing.windows=2 timing.window_time_s=0.02 timing.warm_up_time_s=0.1"
    options = (
        "experiment=miniature",
        "steps=[bench_matmul]",
        "kernel=numpy_again",
        "size=64",
        f"overrides={short}",
    )
    project.snakemake("rows", "--config", *options, "device=cpu")
    assert row(project.folder, "*/bench_matmul/kernel=numpy_again*/row.csv")["adds"] == "nothing"


@pytest.mark.slow
def test_a_joined_column_is_a_field_and_a_line_and_a_language_a_catalogue(make_project):
    project = make_project(with_source=True)
    join = project.folder / "src/mfulab/mfu/join.py"
    line = '        "share_of_spec_percent": percent(speed, peak),'
    new = f'{line}\n        "flops_per_byte": ratio(row.get("flops"), row.get("bytes_moved")),'
    replace(join, line, new)
    joined = project.folder / "src/mfulab/measurements/bench_matmul/joined.py"
    field = "    share_of_spec_percent: "
    replace(joined, field, f'    flops_per_byte: float | None = column("FLOPs ÷ bytes.")\n{field}')
    unread = project.folder / "scripts/unread_columns.py"
    kept = "KEPT = {"
    replace(unread, kept, f'{kept}\n    "flops_per_byte": "a matmul\'s intensity, for users",')
    catalogues = project.folder / "src/mfulab/core/language/catalogue"
    english = (catalogues / "en.yaml").read_text(encoding="utf-8")
    (catalogues / "xx.yaml").write_text(
        english.replace("One matmul", "Xne xatrix xroduct"), encoding="utf-8"
    )
    project.snakemake("report", "--config", "experiment=recorded", "overrides=report.language=xx")
    with (project.folder / "results/tables/matmul.csv").open(newline="", encoding="utf-8") as file:
        assert "flops_per_byte" in next(csv.reader(file))
    assert '<html lang="xx"' in (project.folder / "reports/report.html").read_text(encoding="utf-8")
    suite_accepts(project, CHECKS_OF_COLUMNS)


# What each of the three files of a new cause gets, behind the line that it follows.
A_CAUSE = {
    "mfu/causes.py": {
        "CAUSES = (": """    Cause(
        "hot",
        (),
        lambda seen: reached("hot", seen.facts.counters.fp64_active_percent, 50.0),
        "experiment=quickstart",
        "run_in_time",
    ),"""
    },
    **{
        f"core/language/catalogue/{language}.yaml": {
            "  cause:\n    padded": f'    hot: "{word}"',
            "verdict:": f'  hot: "{sentence}"',
            "advice:": f'  hot: "{advice}"',
            "because:": f'  hot: "{clause}"',
        }
        for language, word, sentence, advice, clause in (
            ("en", "hot device", "{share:.0f} % are hot.", "cool it.", "it is hot"),
            ("ko", "뜨거운 장치", "{share:.0f}%가 뜨겁습니다.", "식히십시오.", "뜨겁기 때문입니다"),
        )
    },
}
CHECKS_OF_WORDS = "tests/lab/report/test_language.py"
# The suite's own checks on causes and their words.
CHECKS_OF_CAUSES = (
    CHECKS_OF_WORDS,
    "tests/mfu/test_verdict.py",
    "tests/mfu/test_ladder.py",
    "tests/lab/report/test_trust.py",
    "tests/loop/interactive/test_show.py",
)
# Those on measurements, their keys and figures, and the words of both. What is generated is written
# before.
OF_PROJECT = "tests/workflow/test_project.py::test_"
CHECKS_OF_MEASUREMENTS = (
    CHECKS_OF_WORDS,
    "tests/lab/report/test_korean.py::test_no_particle_follows_a_name_or_number_of_any_sound",
    "tests/lab/report/test_korean.py::test_the_catalogue_speaks_in_one_politeness",
    "tests/lab/report/test_korean.py::test_a_thing_has_one_word",
    f"{OF_PROJECT}every_step_has_its_module",
    f"{OF_PROJECT}every_description_of_a_key_stands_alone",
    f"{OF_PROJECT}the_table_of_groups_is_that_of_the_folders_and_of_what_steps_read",
)
CHECKS_OF_COLUMNS = ("tests/lab/tables/test_columns.py",)


@pytest.mark.slow
def test_a_cause_is_its_rule_and_its_words(make_project):
    """Added to a copy, it is judged, said and advised in both languages, and the suite accepts it:
    no other file knows it."""
    project = make_project(with_source=True)
    for file, lines in A_CAUSE.items():
        path = project.folder / "src/mfulab" / file
        text = path.read_text(encoding="utf-8")
        for before, line in lines.items():
            end = text.index("\n", text.index(f"\n{before}") + 1)
            text = f"{text[:end]}\n{line}{text[end:]}"
        path.write_text(text, encoding="utf-8")
    bring_suite(project)
    assert "| `hot` |" in (project.folder / "docs/why.md").read_text(encoding="utf-8")
    program = """
from mfulab.core.language import Texts, verdicts
from mfulab.mfu.account import read
row = read({"time_s": 0.1, "mfu_percent": 40.0, "fp64_active_percent": 90.0}).verdict_columns()
for language in ("en", "ko"):
    said = verdicts.columns(row, language=language)
    print(said["verdict"], said["verdict_reason"], Texts(language, "advice")(row["verdict"]))
"""
    said = project.run(sys.executable, "-c", program)
    expected = ["hot device 90 % are hot. cool it.", "뜨거운 장치 90%가 뜨겁습니다. 식히십시오."]
    assert said.stdout.splitlines() == expected
    run_suite(project, CHECKS_OF_CAUSES)


def suite_accepts(project: Project, checks: Sequence[str]) -> None:
    """Runs the suite's own checks on a copy to which something was added."""
    bring_suite(project)
    run_suite(project, checks)


def bring_suite(project: Project) -> None:
    """Copies the tests and what they read, and writes what is generated."""
    for name in ("tests", "docs"):
        shutil.copytree(ROOT / name, project.folder / name, dirs_exist_ok=True)
    for name in ("notebooks", "requirements"):
        (project.folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "pyproject.toml", project.folder)
    project.run("mfulab", "schema", "--fix")


def run_suite(project: Project, checks: Sequence[str]) -> None:
    alone = (*checks, "-n0", "-q", "-p", "no:cacheprovider")
    done = project.run(sys.executable, "-m", "pytest", *alone, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


# A measurement with a key of its own and a column of its own: its folder, its experiment, its
# figure, its words.
ADDED = {
    "src/mfulab/measurements/count_letters/__init__.py": '''"""Letters of a model's name."""

from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.configs import StepConfig
from mfulab.core.groups import ModelConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Row


class CountLettersConfig(StepConfig):
    """Letters of a model's name."""

    axes: ClassVar[tuple[str, ...]] = ("model", "alphabet")
    on_device: ClassVar[bool] = False
    model: ModelConfig
    alphabet: Literal["all", "vowels"] = Field("all", description="Letters that count: all, or vowels alone.")


class LettersRow(Row):
    """Letters of a model's name."""

    model: str = ""
    alphabet: str = ""
    letters: int | None = Field(None, description="Of the name.")


MEASUREMENT = Measurement(
    "letters", CountLettersConfig, LettersRow, "Reading {wildcards.run}", "model alphabet status letters"
)
''',
    "src/mfulab/measurements/count_letters/measure.py": '''"""Counts the letters of a model's name."""

from mfulab.core.measurement import Measured
from mfulab.measurements.count_letters import LettersRow


def measure(config, folder):
    """Counts them."""
    counted = [each for each in config.model.name if config.alphabet == "all" or each in "aeiou"]
    return Measured(LettersRow(model=config.model.name, alphabet=config.alphabet, letters=len(counted)))
''',
    "src/mfulab/measurements/count_letters/joined.py": '''"""Columns that the table of letters adds."""

from mfulab.core import columns
from mfulab.core.columns import of_config


class Joined(columns.Joined):
    """What the named model is for."""

    task: str | None = of_config("model.task")
''',
    "src/mfulab/lab/report/figures/letters.py": '''"""Letters of models' names."""

from mfulab.lab.report.frames import ok

TABLES = ("letters",)
TOPIC = "flops"
ORDER = 9


def rows(tables):
    """Counted names."""
    return ok(tables["letters"], "letters")


def finding(rows, text):
    """The longest name."""
    return text("finding", model=rows.iloc[0]["model"])


def draw(rows, figure, text):
    """A bar a name."""
    figure.subplots().barh(rows["model"], rows["letters"])
''',
    "config/experiment/letters.yaml": """# @package _global_
# How long the names of models are.
steps: [count_letters] # names alone
hydra:
  sweeper:
    params:
      model: digit_cnn # a name
      alphabet: all,vowels # a key that no other file holds
""",
}
WORDS = {
    "en": "\nletters:\n  title: Letters\n  reading: Bars.\n  finding: Of {model}.\n",
    "ko": "\nletters:\n  title: 글자\n  reading: 막대.\n  finding: '{model}의 글자.'\n",
}


def add_measurement(folder: Path) -> int:
    """Writes the measurement into a copy; the number of places touched, where a folder is one and
    the words are one."""
    for name, text in ADDED.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for language, words in WORDS.items():
        path = folder / f"src/mfulab/core/language/catalogue/{language}.yaml"
        path.write_text(path.read_text(encoding="utf-8") + words, encoding="utf-8")
    return len({str(Path(name).parent) for name in ADDED}) + 1


@pytest.mark.slow
def test_a_measurement_is_its_folder_its_experiment_its_figure_and_its_words(make_project):
    project = make_project(with_source=True)
    assert add_measurement(project.folder) == 4
    done = project.snakemake(
        "report", "--config", "experiment=letters", "overrides=report.language=ko"
    )
    counted = {
        alphabet: row(project.folder, f"count_letters/model=digit_cnn,alphabet={alphabet}/row.csv")[
            "letters"
        ]
        for alphabet in ("all", "vowels")
    }
    assert counted == {"all": str(len("digit_cnn")), "vowels": "2"}
    with (project.folder / "results/tables/letters.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert {line["alphabet"]: line["letters"] for line in lines} == counted
    assert {line["task"] for line in lines} == {"classification"}
    assert (project.folder / "reports/figures/letters.svg").exists(), done.stdout
    page = (project.folder / "reports/report.html").read_text(encoding="utf-8")
    assert "digit_cnn의 글자." in page
    assert "Letters that count" not in done.stdout  # a key's description is no part of the output
    one = project.snakemake("rows", "-n", "--config", "experiment=letters", "alphabet=vowels")
    assert "Nothing to be done" in one.stdout
    suite_accepts(project, CHECKS_OF_MEASUREMENTS)


EVERYTHING = """# @package _global_
steps: [STEPS]
replicates: 1
ceiling_replicates: 1
trace: trace.json
hydra:
  sweeper:
    params: { model: linear_1024, precision: fp32, batch_size: 2, size: 64, kernel: numpy }
"""
EVERY = ("--config", "experiment=everything", "device=cpu")
MEASURE = """
def measure(config, folder):
    return Measured(MEASUREMENTS[step].row())
"""


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A copy in which a run of every step has a row; what is measured there is nothing."""
    project = Project(copy_workflow(tmp_path_factory.mktemp("everything"), with_source=True))
    fake_steps(project.folder, MEASURE, tuple(MEASUREMENTS))
    shutil.copytree(ROOT / PUBLISHED, project.folder / PUBLISHED)
    (project.folder / "trace.json").write_text('{"traceEvents": []}')
    steps = ", ".join(step for step in MEASUREMENTS if step not in ("ceilings", "environment"))
    (project.folder / "config/experiment/everything.yaml").write_text(
        EVERYTHING.replace("STEPS", steps)
    )
    project.snakemake("rows", *EVERY, MFULAB_WORKER="")
    assert {Path(row).parts[-3] for row in project.rows()} == set(MEASUREMENTS)
    assert again(project) == set()
    return project


def again(project: Project) -> set[str]:
    """Steps of which a run would be measured now."""
    done = project.snakemake("rows", "-n", *EVERY)
    return {
        step for step in MEASUREMENTS if re.search(rf"^{step} +\d+$", done.stdout, re.MULTILINE)
    }


@pytest.mark.slow
def test_a_reworded_docstring_or_comment_measures_nothing_again(everything):
    package = everything.folder / "src/mfulab"
    shared = ["core/groups.py", "core/rows.py", "core/configs.py", "core/files.py"]
    for path in [*(package / name for name in shared), *package.glob("measurements/*/*.py")]:
        text = path.read_text(encoding="utf-8")
        reworded = re.sub(r'^( *""")(?=\w)', r"\1In other words: ", text, flags=re.MULTILINE)
        reworded = re.sub(r'(description=|column\()"', r'\1"That is: ', reworded)
        path.write_text(f"# A comment.\n{reworded}", encoding="utf-8")
    assert again(everything) == set()


@pytest.mark.slow
def test_another_measurement_measures_none_of_the_others_again(everything):
    add_measurement(everything.folder)
    assert again(everything) == set()


@pytest.mark.slow
def test_a_column_of_one_step_measures_that_step_again(everything):
    declared = everything.folder / "src/mfulab/measurements/probe_memory/__init__.py"
    replace(declared, "    repetitions: int", "    more: int = 0\n    repetitions: int")
    assert again(everything) == {"probe_memory"}


@pytest.mark.slow
def test_a_changed_constant_measures_exactly_the_steps_again_that_reach_it(everything):
    probe = everything.folder / "src/mfulab/timing/probe.py"  # other steps reach other names in it
    replace(probe, "\nDISTURBED = 1.3 ", "\nDISTURBED = 1.4 ")
    assert again(everything) == {"probe_memory", "profile_step", "bench_matmul"}
