"""Texts: none is missing in any language, none is unused, and each has its glyphs."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from typing import get_args

import pytest
import yaml
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

import mfulab.lab.report
from mfulab.core.groups import WorkloadConfig
from mfulab.core.language import LANGUAGES, PARTS, Texts, catalogue, sentences, verdicts
from mfulab.core.rows import Status
from mfulab.core.said import Said, as_json, from_json, of_source
from mfulab.core.yaml_text import SafeLoader
from mfulab.lab.report import figures
from mfulab.lab.report.drawing import fonts
from mfulab.lab.tables import compare
from mfulab.loop.goodput import engines
from mfulab.mfu import ladder
from mfulab.mfu.account import read
from mfulab.mfu.causes import BY_KEY

ROOT = Path(__file__).parents[3]
PACKAGE = Path(mfulab.__file__).parent
LOGGER = PACKAGE.with_name("snakemake_logger_plugin_mfulab")
REPORT = PACKAGE / "lab/report"
SHOW = PACKAGE / "loop/interactive/show.py"
CLI, GOODPUT = PACKAGE / "cli", PACKAGE / "loop/goodput"
HEADROOM = PACKAGE / "mfu/headroom.py"
COMPARE = PACKAGE / "lab/tables/compare.py"
ASKING = ("text", "words")
CONSTANTS = (
    *("key", "PARTS", "RUNGS", "WORDS", "COUNTERS", "TIMES", "ORDERS"),
    *("PRODUCTS", "OPERATORS", "COLLECTIVES", "MODULES", "KERNELS", "OVERVIEW", "RANKS"),
    *("GAPS", "CAUSES", "COMPARED", "HEADS", "ROOFLINE", "PHASES", "WORTH"),
    *("SINGLE", "KINDS", "OPERATIONS", "THREE_WAYS", "IN_TORCH", "ELSEWHERE"),
    *("_SAME", "_OF_PRODUCTS"),
)
REASONS = {"no_clock", "no_bytes", "no_roof", "no_device_name", "no_cpu_name", "one_of_several"}
JOB = {"torn", "clock", "ranks", "unread"}
# Of traces: titles of tables, what bounds an operator, where its best is from, and how two traces
# differ.
TRACES = {"products", "operators", "modules", "collectives", "kernels"}
TRACES |= {"gaps", "overview", "ranks", "differences"}
TRACES |= {"compute", "memory", "launch", "best_trace", "best_matmul_runs", "best_both"}
TRACES |= {"kind", "slower", "faster", "same"}
# Errors that a command shows, and parts whose sources a recorded number rests on: a reworded error
# would call it outdated.
SHOWN = {"ConfigurationError", "UnreadableError", "WebError", "LockError"}
RESTED_ON = ("device/", "flops/", "models/")
NOTES = {
    *("imprecise", "update", "uncounted", "uncounted_because"),
    *("untimed", "no_peak", "over_peak", "boosted"),
    *(f"rank_slowest_{cause}" for cause in ("compute", "copy", "idle", "unknown")),
}


def judged(row: dict[str, object]) -> dict[str, object]:
    return read(row).verdict_columns()


def keys(language: str) -> set[tuple[str, str]]:
    """Section and key of each text; definitions have headings of their own, names only where a word
    differs."""
    sections = catalogue(language).items()
    return {
        (section, key)
        for section, texts in sections
        if section not in ("definitions", "names")
        for key in texts
    }


def placeholders(text: object) -> set[str]:
    names = {name for _, name, _, _ in Formatter().parse(str(text)) if name}
    if names & set(PARTS):  # in words what these two are
        names |= {"count", "total"}
    return names - set(PARTS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_count_of_a_total_reads_as_words_for_all_and_for_the_only_one(language):
    text = Texts(language)
    told = {(count, total): text.part(count, total) for total in (1, 4) for count in (0, 1, total)}
    assert len(set(told.values())) == len(told)
    assert told[1, 4] == text("part_of", count=1, total=4)
    assert "1" not in told[4, 4]
    assert told[4, 4].count("4") == 1
    sentence = verdicts.sentence("disturbed", {"count": 1, "total": 1, "slowdown": 2}, language)
    assert told[1, 1] in sentence
    assert text.part(1.0, 4.0) == told[1, 4]


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a module, which several tests read."""
    return ast.parse(path.read_text())


def asked_in(
    path: Path, asking: tuple[str, ...] = ASKING, constants: tuple[str, ...] = CONSTANTS
) -> set[str]:
    """The keys that a module asks for: in its calls of `asking`, and in the constants it keeps for
    them."""
    found = set()
    tree = parsed(path)
    answers = reasons_of_answers(tree)
    for node in ast.walk(tree):
        keys: ast.AST | None = None
        if node in answers:
            continue
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", getattr(node.func, "attr", "")) in asking
        ):
            keys = (
                None if not node.args or isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            )
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in constants:
            keys = node.value
        elif isinstance(node, ast.Dict):  # arguments made elsewhere: {"key": "power", …}
            named = {
                ast.unparse(name or value): value
                for name, value in zip(node.keys, node.values, strict=True)
            }
            keys = named.get("'key'")
        elif isinstance(node, ast.keyword) and node.arg in ("x_label", "y_label"):
            keys = node.value
        found |= set(strings(keys)) if keys else set()
    return found


def reasons_of_answers(tree: ast.AST) -> set[ast.Call]:
    """The reasons of a command's JSON, which are keys and no texts: `unanswered(unit, Said(key))`."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    answers = (call for call in calls if getattr(call.func, "id", "") == "unanswered")
    return {answer.args[1] for answer in answers if isinstance(answer.args[1], ast.Call)}


def told_in_english(tree: ast.AST) -> Iterator[str]:
    """Errors in a module that a command shows and whose sentence is a text in the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in SHOWN:
            texts = (ast.JoinedStr, ast.BinOp, ast.Constant)
            said = [given for given in node.args if isinstance(given, texts)]
            if said and len(node.args) == 1:
                yield ast.unparse(node)


def strings(node: ast.AST) -> Iterator[str]:
    """The texts in an expression, those of a condition and parts of texts left out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.JoinedStr):  # parts of a key
        return
    for child in (
        [node.body, node.orelse] if isinstance(node, ast.IfExp) else ast.iter_child_nodes(node)
    ):
        yield from strings(child)


@cache
def mentioned() -> frozenset[str]:
    """Every text in the packages' code that may be a key, also where an expression chooses it."""
    paths = [*PACKAGE.rglob("*.py"), *LOGGER.rglob("*.py")]
    nodes = (node for path in paths for node in ast.walk(parsed(path)))
    return frozenset(
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@cache
def used() -> frozenset[str]:
    """Every key that code or template asks for."""
    template = (REPORT / "page/templates/report.html").read_text()
    grids = re.findall(r"grid\(.*?\]", (REPORT / "page/templates/run.js").read_text())
    asked = {
        *re.findall(r'"(\w+)"', " ".join(grids)),
        *re.findall(r"text\([\"'](\w+)[\"']", template),
        *NOTES,
        *BY_KEY,
        *(rung.column for rung in ladder.RUNGS),
        *engines.COLUMNS,
        *asked_in(GOODPUT / "engines.py", (), ("rules",)),
    }
    said = (asked_in(path, ("Said", "reached"), ()) for path in PACKAGE.rglob("*.py"))
    ladders = (asked_in(path) for path in (*GOODPUT.glob("*.py"), *CLI.glob("*.py")))
    modules = (
        asked_in(path)
        for path in (
            *REPORT.rglob("*.py"),
            SHOW,
            HEADROOM,
            COMPARE,
            PACKAGE / "tracing/device_time.py",
        )
    )
    return frozenset(asked.union(*modules, *ladders, *said, REASONS, JOB, TRACES))


def test_all_languages_have_the_same_texts():
    first, *others = (keys(language) for language in LANGUAGES)
    for other in others:
        assert other == first


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_translations_take_the_same_values(language):
    for section, key in keys("en"):
        english, translated = catalogue("en")[section][key], catalogue(language)[section][key]
        assert placeholders(translated) <= placeholders(english), (section, key)
        assert placeholders(english) - placeholders(translated) <= {"total"}, (section, key)
        assert translated.strip()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_that_is_asked_for_exists(language):
    of_a_budget = {"others"}  # a key of its JSON, beside the text for it
    assert used() - {key for _, key in keys(language)} - of_a_budget == set()


def test_an_error_that_a_command_shows_has_a_key():
    english = {}
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        told = list(told_in_english(parsed(path)))
        if told and not place.startswith(RESTED_ON):
            english[place] = told
    assert english == {}


def test_a_reason_of_an_answer_has_a_text_or_a_line_in_the_manual():
    trees = [parsed(path) for path in PACKAGE.rglob("*.py")]
    reasons = {said.args[0] for tree in trees for said in reasons_of_answers(tree)}
    told = {key for reason in reasons for key in strings(reason)}
    assert {"no_row", "refused", "not_measured"} <= told
    without_text = told - {key for _, key in keys("en")}
    manual = {*re.findall(r"\w+", (ROOT / "docs/json.md").read_text(encoding="utf-8"))}
    assert without_text - manual == set()


def test_no_text_is_unused():
    built = {"finding", "title", "diagonal", "reading"}
    built |= {f"topic_{topic}" for topic in figures.TOPICS}
    prefixes = ("series_", "topic_", "value ", "progress_", "rank_slowest_")
    for section, key in keys("en"):
        # the notebook's cells are looked at by their own test
        if section != "notebook" and not key.startswith(prefixes):
            assert key in mentioned() | used() | built, (section, key)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_figure_and_topic_has_its_words(language):
    for name, module in figures.modules().items():
        assert Texts(language, name)("title")
        assert Texts(language, name)("reading")
        assert Texts(language, "page")(f"topic_{module.TOPIC}")


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_key_of_a_catalogue_stands_twice(language):
    file = PACKAGE / f"core/language/catalogue/{language}.yaml"
    waiting: list[yaml.Node] = [yaml.compose(file.read_text(encoding="utf-8"), SafeLoader)]
    twice = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            counts = Counter(key.value for key, _ in node.value)
            twice += [key for key, count in counts.items() if count > 1]
            waiting += [value for _, value in node.value]
    assert twice == []


def test_a_sentence_takes_no_number_by_the_name_of_an_argument():
    for section in sentences.SECTIONS:
        for text in catalogue("en")[section].values():
            assert not placeholders(text) & {"self", "key"}, text


def test_definitions_are_as_many_in_every_language():
    assert len({len(catalogue(language)["definitions"]) for language in LANGUAGES}) == 1


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_installed_fonts_have_every_character(language):
    glyphs = set()
    for family in fonts.families():
        found = font_manager.findfont(
            font_manager.FontProperties(family=[family]), fallback_to_default=False
        )
        glyphs |= set(FT2Font(found).get_charmap())
    texts = " ".join(str(text) for texts in catalogue(language).values() for text in texts.values())
    seen = {letter for letter in texts if ord(letter) not in glyphs and not letter.isspace()}
    assert seen == set()


def test_the_page_brings_the_letters_that_it_needs_and_no_others():
    brought = fonts.faces("바쁨 busy")
    assert brought.count("@font-face") == 2
    assert len(brought) < 20_000
    assert fonts.faces("busy") == ""


def test_an_unknown_language_names_the_choices():
    with pytest.raises(ValueError, match=r"report\.language=fr: choose one of en, ko"):
        Texts("fr")


def test_words_follow_their_number():
    assert Texts("en", "page")("excluded", count=1) == "1 run left out on purpose"
    assert Texts("en", "page")("excluded", count=2) == "2 runs left out on purpose"


@pytest.mark.parametrize(
    ("seconds", "korean"), [(9.9, "9.9초"), (45, "45초"), (156, "2분 36초"), (7620, "2시간 7분")]
)
def test_durations_are_written_as_korean_does(seconds, korean):
    duty = SimpleNamespace(runs=1, total_s=seconds, duty_percent=50)
    assert f" {korean}이며" in Texts("ko", "page")("duty_cycle", duty=duty)


def test_values_without_a_word_stay_themselves():
    assert Texts("ko").name("mode", "training") == "학습"
    assert Texts("ko").name("precision", "bf16") == "bf16"


@pytest.mark.parametrize("language", LANGUAGES)
def test_verdicts_are_sentences_in_every_language(language):
    row = {"time_s": 0.1, "utilization_percent": 99.0, "mfu_percent": 0.4, "other_processes": 2.0}
    told = verdicts.columns(judged(row), "", language)
    english = verdicts.columns(judged(row))
    for name in ("verdict", "verdict_reason", "verdict_flags"):
        assert told[name]
        assert (told[name] == english[name]) is (language == "en")
    assert "99 %" in told["verdict_reason"].replace("99%", "99 %")
    nearly_none = verdicts.columns(judged({**row, "mfu_percent": 0.0092}), "", language)
    assert "0.0092 %" in nearly_none["verdict_reason"].replace("92%", "92 %")


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_disturbed_a_run_is_told_before_the_cause(language):
    row = {"time_s": 0.1, "utilization_percent": 99.0, "mfu_percent": 4.0}
    row |= {"other_processes_percent": 50.0}
    told, quiet = (
        verdicts.columns(judged(row | more), "", language) for more in ({}, {"steal_percent": 1.0})
    )
    assert told == quiet
    alone = verdicts.columns(judged(row | {"other_processes_percent": 3.0}), "", language)
    beside = verdicts.sentence("beside", {"share": 50.0}, language)
    assert told["verdict_reason"] == f"{beside}; {alone['verdict_reason']}"
    named = {"cause": alone["verdict"]}
    assert told["verdict"] == verdicts.sentence("while_disturbed", named, language)
    assert told["verdict"].endswith(alone["verdict"])
    states = {"disturbed_replicates": 1.0, "replicates": 3.0, "slowdown": 1.4}
    both = verdicts.columns(judged(row | states), "", language)
    assert both["verdict_reason"] == told["verdict_reason"], "other load brings slow states about"
    assert len(both["verdict_flags"].split("; ")) == 2
    slow = verdicts.columns(judged(row | states | {"other_processes_percent": 3.0}), "", language)
    numbers = {"count": 1.0, "total": 3.0, "slowdown": 1.4}
    assert slow["verdict_reason"].startswith(verdicts.sentence("disturbed", numbers, language))
    shared = judged({**row, "utilization_percent": 50.0})
    seen = verdicts.columns(shared, "", language)["verdict"]
    assert seen == Texts(language).name("cause", "shared"), "said once"


@pytest.mark.parametrize("language", LANGUAGES)
def test_notes_on_mfu_are_sentences_in_every_language(language):
    known = {"status": "ok", "flops": 1e9, "time_s": 0.1}
    known |= {"effective_precision": "fp8", "mfu_basis": "spec"}
    for values, said in [
        ({"mfu_percent": 120.0}, "100"),
        ({}, "fp8"),
        ({"flops": None}, "aten::odd"),
        ({"time_s": float("nan")}, "MFU"),
    ]:
        row = known | values | {"mfu_note": read(known | values).note}
        note = verdicts.note(row, "aten::odd has no formula", language)
        assert said in note
        assert (note == verdicts.note(row, "aten::odd has no formula")) is (language == "en")
    assert read(known | {"mfu_percent": 50.0}).note is None


@pytest.mark.parametrize(
    "cell", ["{", "[1]", '{"of a later version": {"share": 3}}', '{"beside": {}}']
)
def test_an_odd_verdict_is_shown_as_it_is(cell):
    row = {"verdict": "unheard of", "verdict_reason": "idle"}
    row |= {"verdict_numbers": cell, "verdict_flags": cell}
    words = verdicts.columns(row)
    assert (words["verdict"], words["verdict_reason"]) == ("unheard of", "idle")
    assert isinstance(words["verdict_flags"], str)


def test_an_operator_is_the_optimisers_where_its_phase_takes_as_long():
    row = {"mode": "training", "optimizer": "adam", "time_s": 0.1, "optimiser_ms": 50.0}
    assert verdicts.operator("aten::div", 25.0, row) == "Adam's element-wise update (aten::div)"
    assert verdicts.operator("aten::div", 60.0, row) == "element-wise division (aten::div)"
    found = verdicts.operator("aten::div", 25.0, row | {"optimiser_ms": None})
    assert found == "element-wise division (aten::div)"
    assert verdicts.operator("aten::addcdiv_", 25.0, row | {"optimiser_ms": None}).startswith(
        "Adam's"
    )
    seen = verdicts.operator("aten::addcdiv_", 25.0, row | {"mode": "inference"})
    assert seen == "aten::addcdiv_"
    assert "원소별 갱신" in verdicts.operator("aten::div", 25.0, row, "ko")
    numbers = (
        '{"name": "aten::div", "share": 25.0, "others": 60.0, "matmuls": 30.0, '
        '"speed": 20.0, "measured": 1, "beaten": 0}'
    )
    told = verdicts.columns(
        row | {"verdict_reason": "other_operators_most", "verdict_numbers": numbers}
    )
    assert "Adam's element-wise update (aten::div) alone 25 %" in told["verdict_reason"]
    older = numbers.replace(', "beaten": 0', "")
    row |= {"verdict_reason": "other_operators_most", "verdict_numbers": older}
    assert verdicts.columns(row)["verdict_reason"] == told["verdict_reason"]


@pytest.mark.parametrize("language", [language for language in LANGUAGES if language != "en"])
def test_translations_have_a_word_for_each_value(language):
    names = catalogue(language)["names"]
    assert set(names["mode"]) == set(get_args(WorkloadConfig.model_fields["mode"].annotation))
    assert set(names["cause"]) == {*BY_KEY}
    assert set(names["compared"]) == set(compare.STYLES)
    assert set(names["status"]) == set(get_args(Status)) - {"ok"}


def test_no_name_is_its_own_value():
    assert all(
        word != value
        for words in catalogue("en")["names"].values()
        for value, word in words.items()
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_key_of_a_sentence_stands_in_one_section(language):
    found = [key for section in sentences.SECTIONS for key in catalogue(language)[section]]
    assert len(found) == len(set(found))


@pytest.mark.parametrize(("language", "joined"), [("en", "no GPM"), ("ko", "GPM이 없음")])
def test_a_sentence_within_a_sentence_is_said_in_the_same_language(language, joined):
    said = of_source("GPM", Said("no_exporter", {"why": Said("no_gpm"), "address": "here"}))
    for form in (said, from_json(json.loads(json.dumps(as_json(said))))):
        assert joined in verdicts.say(form, language)
        assert form == said


def test_the_system_s_own_copy_of_the_font_is_not_found(monkeypatch):
    """Its bold file says that it is semibold, so each bold label would print a warning."""
    system = font_manager.FontEntry(
        fname="/usr/share/NanumGothicBold.ttf", name=fonts.HANGUL, weight=600
    )
    listed = [*font_manager.fontManager.ttflist, system]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", listed)
    fonts.families()
    weights = {font.weight for font in listed if font.name == fonts.HANGUL}
    assert weights == (set(fonts.FILES) if fonts.paths() else {600})
