"""The seminar's notebook: runs in a checkout, sets itself up elsewhere, keeps little."""

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from support.bad_yaml import BAD_YAML
from support.processes import HANGS_S
from support.workflow_copy import ROOT, draw_all

from mfulab.core.language import LANGUAGES, Texts, catalogue
from mfulab.lab.report import figures
from mfulab.lab.tables import columns

NOT_INSTALLED = "the notebook's packages are not installed: pip install '.[notebook]'"
nbformat = pytest.importorskip("nbformat", reason=NOT_INSTALLED)
PLACE = Path("notebooks/seminar.ipynb")
NOTEBOOK = nbformat.read(ROOT / PLACE, as_version=4)
CODE = [cell for cell in NOTEBOOK.cells if cell.cell_type == "code"]
SHOWN = re.compile(r'^show\("(\w+)"\)', re.MULTILINE)
SCRIPT = runpy.run_path(str(ROOT / "scripts/notebook.py"))
together = SCRIPT["together"]
SET_UP = next(cell for cell in CODE if "clone" in cell.source)
FUNCTIONS, _, _ = next(cell.source for cell in CODE if "def show(name)" in cell.source).partition(
    "profile, matmul"
)


def test_it_is_valid_and_its_outputs_are_those_of_one_run_small_and_of_no_machine():
    nbformat.validate(NOTEBOOK)
    assert [cell.execution_count for cell in CODE] == list(range(1, len(CODE) + 1))
    assert all(cell.metadata == {} for cell in NOTEBOOK.cells)
    outputs = [output for cell in CODE for output in cell.outputs]
    assert not [
        output
        for output in outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]
    written = [
        output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs
    ]
    assert not [text for text in written if text.startswith(("Series([]", "Empty DataFrame"))]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 15
    assert all(picture.metadata["image/png"]["alt"] for picture in pictures)
    text = (ROOT / PLACE).read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert not re.search(r"\\u001b|/tmp/|/home/|/work/", text)


def shown_columns(code: str) -> list[tuple[str, str]]:
    """Pairs of the table that a cell reads and a column that it lists."""
    table = re.search(r'table\("(\w+)"\)', code)
    if table is None or "columns = [" not in code:
        return []
    lists = [
        node.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "columns"
    ]
    return [(table[1], name) for name in ast.literal_eval(lists[0])]


def test_columns_that_its_cells_list_are_columns_of_their_tables():
    listed = [pair for cell in CODE for pair in shown_columns(cell.source)]
    assert len({table for table, _ in listed}) >= 2
    missing = [(table, name) for table, name in listed if name not in columns.columns(table)]
    assert missing == []


def test_what_is_kept_of_an_output_has_no_progress_and_no_colours():
    def printed(text, name="stdout"):
        return nbformat.v4.new_output("stream", name=name, text=text)

    shown = nbformat.v4.new_output("display_data", data={"text/plain": "a table"})
    progress = (
        "\x1b[2m      … quality  none · 10 s\x1b[0m\r\n\x1b[32m 1/12 quality  none · 11 s · █░ 11 s of 20 s\x1b[0m\r\n"
        "12/12 quality  pooled · 1 min 2 s · ██ 20 s of 20 s\r\n"
    )
    kept = together(
        [
            printed("2 jobs\r\n"),
            printed(progress),
            printed("end\n"),
            printed("a warning\n", "stderr"),
            shown,
        ]
    )
    assert [output.get("text") for output in kept] == ["2 jobs\nend\n", None]
    assert together([printed(progress)]) == []


def test_other_languages_are_written_from_it_with_the_same_code_and_are_up_to_date():
    written = SCRIPT["translations"](ROOT / PLACE)
    assert [path.name for path in written] == ["seminar.ko.ipynb"]
    for path, made in written.items():
        kept = nbformat.read(path, as_version=4)
        nbformat.validate(kept)
        assert kept == made, "python scripts/notebook.py --translate"
        code = [cell.source for cell in kept.cells if cell.cell_type == "code"]
        found = [source.replace('LANGUAGE = "ko"', 'LANGUAGE = "en"') for source in code]
        assert found == [cell.source for cell in CODE]
        assert sum('LANGUAGE = "ko"' in source for source in code) == 1, "figures are Korean, too"
        pairs = [
            (cell, own)
            for cell, own in zip(NOTEBOOK.cells, kept.cells, strict=True)
            if own.cell_type != "code"
        ]
        for cell, own in pairs:
            for kind in (r"`[^`]+`", r"\$\$.+?\$\$", r"^#+", r"^(?:\||- )"):
                same = [sorted(re.findall(kind, each.source, re.MULTILINE)) for each in (cell, own)]
                assert same[0] == same[1], (cell.id, kind)
            assert re.search("[가-힣]", own.source)


def test_a_cell_without_words_and_words_without_a_cell_are_named():
    cells = [
        nbformat.v4.new_markdown_cell("One", id="one"),
        nbformat.v4.new_code_cell("1", id="code"),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    found = [cell.source for cell in SCRIPT["translated"](notebook, {"one": "하나"}, "ko").cells]
    assert found == ["하나", "1"]
    with pytest.raises(ValueError, match="one, other"):
        SCRIPT["translated"](notebook, {"other": "다른"}, "ko")


def told(steps: int, matmuls: int, doubtful: int, language: str = "en"):
    """A notebook whose cell says so of its rows."""
    says = Texts(language, "notebook")
    lines = says("measured", steps=steps, matmuls=matmuls), says("of_them_doubtful", count=doubtful)
    text = "".join(f"{line}\n" for line in lines)
    output = nbformat.v4.new_output("stream", name="stdout", text=text)
    cells = [nbformat.v4.new_code_cell("1", id="one", outputs=[output], execution_count=1)]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.KO.yaml", "{}"),
        ('mine.ko"; 1.yaml', "{}"),
        *(("mine.ko.yaml", text) for text in ("[1]", "", "a: 1", "1: a", *BAD_YAML.values())),
    ],
)
def test_a_catalogue_that_is_none_is_one_sentence(name, text, tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[])
    nbformat.write(notebook, tmp_path / "mine.ipynb")
    (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit) as ended:
        SCRIPT["translations"](tmp_path / "mine.ipynb")
    assert name in str(ended.value)
    assert "\n" not in str(ended.value)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_share_of_doubtful_rows_is_what_the_notebook_prints(language):
    share = SCRIPT["doubtful_share"]
    assert share(told(30, 10, 4, language)) == pytest.approx(0.1)
    assert share(told(0, 0, 0, language)) == 0
    with pytest.raises(ValueError, match="how many rows are doubtful"):
        share(nbformat.v4.new_notebook())


@pytest.mark.parametrize("name", ["seminar.ipynb", "seminar.ko.ipynb"])
def test_the_shipped_notebooks_are_of_a_quiet_machine(name):
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    assert SCRIPT["doubtful_share"](notebook) <= SCRIPT["MOST_DOUBTFUL"]


@pytest.mark.parametrize(("doubtful", "is_written"), [(4, True), (5, False)])
def test_no_notebook_of_a_disturbed_machine_is_written(tmp_path, monkeypatch, doubtful, is_written):
    place = tmp_path / "lab.ipynb"
    nbformat.write(told(30, 10, 0), place)
    (tmp_path / "lab.ko.yaml").write_text("{}", encoding="utf-8")
    monkeypatch.setitem(SCRIPT["regenerate"].__globals__, "run", lambda *_: told(30, 10, doubtful))
    if is_written:
        SCRIPT["regenerate"](place)
    else:
        with pytest.raises(SystemExit, match="12 % of the rows are doubtful"):
            SCRIPT["regenerate"](place)
    kept = nbformat.read(place, as_version=4).cells[0].outputs[0].text
    assert f"{doubtful if is_written else 0} of them are doubtful" in kept
    assert (tmp_path / "lab.ko.ipynb").exists() is is_written


def test_a_translation_keeps_the_outputs_of_cells_whose_code_is_the_same():
    notebook = told(1, 1, 0)
    kept = told(2, 2, 0)
    translated = SCRIPT["translated"]
    assert "2 matmuls" in translated(notebook, {}, "ko", kept).cells[0].outputs[0].text
    assert translated(notebook, {}, "ko").cells[0].outputs == []
    kept.cells[0].source = "2"
    assert translated(notebook, {}, "ko", kept).cells[0].outputs == []


def test_every_part_ends_in_an_exercise_whose_answer_unfolds():
    text = "\n".join(cell.source for cell in NOTEBOOK.cells if cell.cell_type == "markdown")
    parts = re.split(r"^## \d+\. ", text, flags=re.MULTILINE)[1:]
    assert len(parts) == 10
    for part in parts:
        exercises = part.split("**Exercise**")[1:]
        assert exercises, part[:40]
        assert all("<details><summary>Answer</summary>" in exercise for exercise in exercises), (
            part[:40]
        )


def printed(code: str) -> list[ast.expr]:
    """What a cell prints: the arguments of its `print`."""
    tree = ast.parse(re.sub(r"^( *)!.*", r"\1pass", code, flags=re.MULTILINE))  # shell commands
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [given for call in calls if ast.unparse(call.func) == "print" for given in call.args]


def own_words(node: ast.AST) -> list[str]:
    """English words of the texts in an expression, except for the keys that `says` is given."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("says", "verdicts.say"):
        return []
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.findall(r"[A-Za-z]{3,}", node.value)
    if isinstance(node, ast.Subscript):  # a column
        return []
    found = []
    for child in ast.iter_child_nodes(node):
        found += own_words(child)
    return found


def test_what_a_cell_prints_is_said_in_the_chosen_language():
    """Units, formulas and names of code are the same in each language."""
    alike = {"FLOP", "TFLOP", "exp", "StableSigmoid"}
    own = {cell.id: [own_words(each) for each in printed(cell.source)] for cell in CODE}
    english = {
        cell: {word for words in each for word in words} - alike for cell, each in own.items()
    }
    assert {cell: words for cell, words in english.items() if words} == {}


def test_its_texts_are_those_of_the_catalogue():
    source = "\n".join(cell.source for cell in CODE)
    asked = {*re.findall(r'says\("(\w+)"', source)}
    quoted = {*re.findall(r'"(\w+)"', source)}
    assert len(asked) > 30
    for language in LANGUAGES:
        texts = catalogue(language)["notebook"]
        assert asked <= texts.keys()
        assert texts.keys() <= quoted, "each is asked for"


def test_every_figure_that_it_shows_exists_and_is_introduced():
    shown = SHOWN.findall("\n".join(cell.source for cell in CODE))
    assert set(shown) <= set(figures.modules())
    assert len(shown) == len(set(shown)) > 10
    for before, cell in zip(NOTEBOOK.cells, NOTEBOOK.cells[1:], strict=False):
        assert not SHOWN.search(cell.source) or before.cell_type == "markdown"


def test_where_there_is_no_checkout_it_makes_one_with_the_pinned_versions(tmp_path, monkeypatch):
    ran = []

    def run(command, **options):
        ran.append([str(part) for part in command])
        (tmp_path / "mfulab").mkdir(exist_ok=True)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    exec(SET_UP.source, {"REPOSITORY": "https://example.org/mfulab"})
    clone, install = ran
    assert clone[:2] == ["git", "clone"]
    assert clone[-2:] == ["https://example.org/mfulab", str(tmp_path / "mfulab")]
    assert install == ["make", "install", f"PYTHON={sys.executable}", "KEEP=1"]
    assert Path.cwd() == tmp_path / "mfulab"


def test_in_a_checkout_it_sets_nothing_up(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "Snakefile").touch()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr(subprocess, "run", None)
    exec(SET_UP.source, {})
    assert Path.cwd() == tmp_path


@pytest.mark.slow
@pytest.mark.workflow
def test_it_runs_from_top_to_bottom(measured):
    client = pytest.importorskip("nbclient", reason=NOT_INSTALLED)
    notebook = nbformat.read(ROOT / PLACE, as_version=4)
    choice = next(cell for cell in notebook.cells if cell.source.startswith("REPOSITORY"))
    choice.source += '\nEXPERIMENT = "miniature"'
    draw_all(measured.folder)
    folder = measured.folder / PLACE.parent
    folder.mkdir()
    # No GPU: the miniature was measured on the CPU, and what is shown is to be that.
    environment = {
        **os.environ,
        "PYTHONPATH": str(measured.folder / "src"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    runner = client.NotebookClient(
        notebook, timeout=HANGS_S, resources={"metadata": {"path": str(folder)}}
    )
    runner.execute(env=environment)
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    drawn = set((measured.folder / "results/tables/figures.txt").read_text().split())
    shown = set(SHOWN.findall("\n".join(cell.source for cell in CODE)))
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    # This copy has no recorded machine; one picture is the notebook's own, of a split model.
    # A busy machine draws fewer: what could turn is not drawn.
    assert pictures == len(shown & drawn) + 1 >= 4
    assert {"mfu_versus_utilization", "number_formats"} <= shown & drawn
    assert "8 training and inference steps, 4 matmuls" in printed
    nothing = "neither these runs nor the recorded machines hold anything for it"
    assert f"energy_efficiency: {nothing}" in printed or "energy_efficiency" in drawn


def test_tables_that_a_second_report_wrote_are_read_anew(tmp_path, monkeypatch):
    listed = tmp_path / "results/tables/figures.txt"
    listed.parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    answers = iter(["first", "second"])
    monkeypatch.setattr("mfulab.lab.report.frames.read", lambda _: (next(answers), []))
    known = {"Path": Path, "LANGUAGE": "en"}
    exec(FUNCTIONS, known)
    read = []
    for written_at in (1, 1, 2):
        listed.touch()
        os.utime(listed, (written_at, written_at))
        read.append(known["measured"]())
    assert read == ["first", "first", "second"]


@pytest.mark.slow
def test_a_figure_not_measured_here_is_of_the_recorded_machines(tmp_path, monkeypatch, capsys):
    """The shipped cell, in a checkout where nothing of the seminar was measured, and in one without
    recordings."""
    displays = pytest.importorskip("IPython.display", reason=NOT_INSTALLED)
    (tmp_path / "results/tables").mkdir(parents=True)
    (tmp_path / "results/tables/figures.txt").touch()
    monkeypatch.chdir(tmp_path)
    pictures = []

    def shown(name):
        known = {
            "LANGUAGE": "en",
            "Path": Path,
            "Image": displays.Image,
            "display": pictures.append,
        }
        exec(FUNCTIONS, known)
        known["show"](name)
        return capsys.readouterr().out

    assert "neither these runs nor the recorded machines" in shown("known_truth")
    assert pictures == []
    (tmp_path / "results/reference").symlink_to(ROOT / "results/reference")
    assert "known_truth: from the recorded machines; to measure it here" in shown("known_truth")
    assert pictures[0].alt == Texts("en", "known_truth")("title")
    Path("results/tables/figures.txt").write_text("known_truth")  # and its table is empty
    assert "known_truth: from the recorded machines" in shown("known_truth")
