"""Texts: none is missing in any language, none is unused, and the font that is installed has a glyph for each."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from typing import get_args

import pytest
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

import mfulab.lab.report
from mfulab.core.files import write_json
from mfulab.core.groups import WorkloadConfig
from mfulab.core.language import LANGUAGES, Texts, catalogue, verdicts
from mfulab.core.rows import Status
from mfulab.lab.report import figures
from mfulab.lab.report.drawing import fonts
from mfulab.lab.tables import compare, records
from mfulab.lab.tables import seminar as claims
from mfulab.loop.goodput import engines
from mfulab.measurements.registry import TABLES
from mfulab.mfu import ladder, verdict

PACKAGE = Path(mfulab.__file__).parent
REPORT = PACKAGE / "lab/report"
SAYING = [
    PACKAGE / "mfu/verdict.py",
    PACKAGE / "mfu/join.py",
    PACKAGE / "measurements/read_trace/reader.py",
    PACKAGE / "flops/traced.py",
]
TRACING = PACKAGE / "tracing"
SHOW = PACKAGE / "loop/interactive/show.py"
CLI, GOODPUT = PACKAGE / "cli", PACKAGE / "loop/goodput"
HEADROOM = PACKAGE / "mfu/headroom.py"
ASKING = ("text", "words")
CONSTANTS = (
    *("key", "PARTS", "RUNGS", "WORDS", "COUNTERS", "TIMES", "ORDERS"),
    *("PRODUCTS", "OPERATORS", "COLLECTIVES", "MODULES", "KERNELS", "OVERVIEW", "RANKS"),
    *("GAPS", "CAUSES", "COMPARED", "ROOFLINE"),
    *("SINGLE", "KINDS", "OPERATIONS", "THREE_WAYS", "IN_TORCH", "ELSEWHERE", "_SAME", "_OF_PRODUCTS"),
)
REASONS = {"no_clock", "no_bytes", "no_roof", "no_device_name", "no_cpu_name", "one_of_several"}
JOB = {"torn", "clock", "ranks", "unread"}
# Of traces: titles of tables, what bounds an operator, where its best is from, and how two traces differ.
TRACES = {"products", "operators", "modules", "collectives", "kernels", "gaps", "overview", "ranks", "differences"}
TRACES |= {"compute", "memory", "launch", "best_trace", "best_matmul_runs", "best_both"}
TRACES |= {"kind", "slower", "faster", "same"}
NOTES = {"imprecise", "update", "uncounted", "uncounted_because", "untimed", "no_peak", "over_peak", "boosted"}


def keys(language: str) -> set[tuple[str, str]]:
    """Section and key of each text; definitions have headings of their own, names only where a word differs."""
    sections = catalogue(language).items()
    return {(section, key) for section, texts in sections if section not in ("definitions", "names") for key in texts}


def placeholders(text: object) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(str(text)) if name}


def asked_in(path: Path, asking: tuple[str, ...] = ASKING, constants: tuple[str, ...] = CONSTANTS) -> set[str]:
    """The keys that a module asks for: in its calls of `asking`, and in the constants it keeps for them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        keys: ast.AST | None = None
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in asking:
            keys = None if not node.args or isinstance(node.args[0], ast.JoinedStr) else node.args[0]
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in constants:
            keys = node.value
        elif isinstance(node, ast.Dict):  # arguments made elsewhere: {"key": "power", …}
            named = {ast.unparse(name or value): value for name, value in zip(node.keys, node.values, strict=True)}
            keys = named.get("'key'")
        found |= set(strings(keys)) if keys else set()
    return found


def strings(node: ast.AST) -> Iterator[str]:
    """The texts in an expression, those of a condition and parts of texts left out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.JoinedStr):  # parts of a key
        return
    for child in [node.body, node.orelse] if isinstance(node, ast.IfExp) else ast.iter_child_nodes(node):
        yield from strings(child)


@cache
def mentioned() -> frozenset[str]:
    """Every text in the package's code that may be a key, also where an expression chooses it."""
    nodes = (node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@cache
def used() -> frozenset[str]:
    """Every key that code or template asks for."""
    template = (REPORT / "page/templates/report.html").read_text()
    grids = re.findall(r"grid\(.*?\]", (REPORT / "page/templates/run.js").read_text())
    asked = {
        *re.findall(r'"(\w+)"', " ".join(grids)),
        *re.findall(r"text\([\"'](\w+)[\"']", template),
        *NOTES,
        *verdict.CAUSES,
        *(rung.column for rung in ladder.RUNGS),
        *engines.COLUMNS,
        *asked_in(GOODPUT / "engines.py", (), ("rules",)),
    }
    said = (asked_in(path, ("Said", "_reached"), ()) for path in (*SAYING, *TRACING.glob("*.py")))
    ladders = (asked_in(path) for path in (*GOODPUT.glob("*.py"), *CLI.glob("*.py")))
    modules = (asked_in(path) for path in (*REPORT.rglob("*.py"), SHOW, HEADROOM, TRACING / "device_time.py"))
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
    assert used() - {key for _, key in keys(language)} == set()


def test_no_text_is_unused():
    built = {f"topic_{topic}" for topic in figures.TOPICS} | {"finding", "title", "diagonal", "reading"}
    prefixes = ("series_", "topic_", "value ", "progress_")
    for section, key in keys("en"):
        if not key.startswith(prefixes):
            assert key in mentioned() | used() | built, (section, key)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_figure_and_topic_has_its_words(language):
    for name, module in figures.modules().items():
        assert Texts(language, name)("title")
        assert Texts(language, name)("reading")
        assert Texts(language, "page")(f"topic_{module.TOPIC}")


def test_definitions_are_as_many_in_every_language():
    assert len({len(catalogue(language)["definitions"]) for language in LANGUAGES}) == 1


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_installed_fonts_have_every_character(language):
    glyphs = set()
    for family in fonts.families():
        found = font_manager.findfont(font_manager.FontProperties(family=[family]), fallback_to_default=False)
        glyphs |= set(FT2Font(found).get_charmap())
    texts = " ".join(str(text) for texts in catalogue(language).values() for text in texts.values())
    assert {letter for letter in texts if ord(letter) not in glyphs and not letter.isspace()} == set()


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


@pytest.mark.parametrize(("seconds", "korean"), [(9.9, "9.9초"), (45, "45초"), (156, "2분 36초"), (7620, "2시간 7분")])
def test_durations_are_written_as_korean_does(seconds, korean):
    duty = SimpleNamespace(runs=1, total_s=seconds, duty_percent=50)
    assert f"걸린 시간 {korean} 중" in Texts("ko", "page")("duty_cycle", duty=duty)


def test_values_without_a_word_stay_themselves():
    assert Texts("ko").name("mode", "training") == "학습"
    assert Texts("ko").name("precision", "bf16") == "bf16"


@pytest.mark.parametrize("language", LANGUAGES)
def test_verdicts_are_sentences_in_every_language(language):
    row = {"time_s": 0.1, "utilization_percent": 99.0, "mfu_percent": 0.4, "other_processes": 2.0}
    told, english = verdicts.columns(verdict.columns(row), "", language), verdicts.columns(verdict.columns(row))
    for name in ("verdict", "verdict_reason", "verdict_flags"):
        assert told[name]
        assert (told[name] == english[name]) is (language == "en")
    assert "99 %" in told["verdict_reason"].replace("99%", "99 %")
    nearly_none = verdicts.columns(verdict.columns({**row, "mfu_percent": 0.0092}), "", language)
    assert "0.0092 %" in nearly_none["verdict_reason"].replace("92%", "92 %")


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_disturbed_a_run_is_told_before_the_cause(language):
    row = {"time_s": 0.1, "utilization_percent": 99.0, "mfu_percent": 4.0, "other_processes_percent": 50.0}
    told, quiet = (verdicts.columns(verdict.columns(row | more), "", language) for more in ({}, {"steal_percent": 1.0}))
    assert told == quiet
    alone = verdicts.columns(verdict.columns(row | {"other_processes_percent": 3.0}), "", language)
    beside = verdicts.sentence("beside", {"share": 50.0}, language)
    assert told["verdict_reason"] == f"{beside}; {alone['verdict_reason']}"
    assert told["verdict"].endswith(f": {alone['verdict']}")
    slow = verdict.columns(row | {"disturbed_replicates": 1.0, "replicates": 3.0, "slowdown": 1.4})
    assert len(verdicts.columns(slow, "", language)["verdict_reason"].split("; ")) == 3, "both, then the cause"
    shared = verdict.columns({**row, "utilization_percent": 50.0})
    assert verdicts.columns(shared, "", language)["verdict"] == Texts(language).name("cause", "shared"), "said once"


@pytest.mark.parametrize("language", LANGUAGES)
def test_notes_on_mfu_are_sentences_in_every_language(language):
    known = {"status": "ok", "flops": 1e9, "time_s": 0.1, "effective_precision": "fp8", "mfu_basis": "spec"}
    for values, said in [
        ({"mfu_percent": 120.0}, "100"),
        ({}, "fp8"),
        ({"flops": None}, "aten::odd"),
        ({"time_s": float("nan")}, "MFU"),
    ]:
        row = known | values | {"mfu_note": verdict.note(known | values)}
        note = verdicts.note(row, "aten::odd has no formula", language)
        assert said in note
        assert (note == verdicts.note(row, "aten::odd has no formula")) is (language == "en")
    assert verdict.note(known | {"mfu_percent": 50.0}) is None
    assert verdict.note({"status": "failed"}) is None


@pytest.mark.parametrize("cell", ["{", "[1]", '{"of a later version": {"share": 3}}', '{"beside": {}}'])
def test_an_odd_verdict_is_shown_as_it_is(cell):
    row = {"verdict": "unheard of", "verdict_reason": "idle", "verdict_numbers": cell, "verdict_flags": cell}
    words = verdicts.columns(row)
    assert (words["verdict"], words["verdict_reason"]) == ("unheard of", "idle")
    assert isinstance(words["verdict_flags"], str)


def test_an_operator_is_the_optimisers_where_its_phase_takes_as_long():
    row = {"mode": "training", "optimizer": "adam", "time_s": 0.1, "optimiser_ms": 50.0}
    assert verdicts.operator("aten::div", 25.0, row) == "Adam's element-wise update (aten::div)"
    assert verdicts.operator("aten::div", 60.0, row) == "element-wise division (aten::div)"
    assert verdicts.operator("aten::div", 25.0, row | {"optimiser_ms": None}) == "element-wise division (aten::div)"
    assert verdicts.operator("aten::addcdiv_", 25.0, row | {"optimiser_ms": None}).startswith("Adam's")
    assert verdicts.operator("aten::addcdiv_", 25.0, row | {"mode": "inference"}) == "aten::addcdiv_"
    assert "원소별 갱신" in verdicts.operator("aten::div", 25.0, row, "ko")
    numbers = '{"name": "aten::div", "share": 25.0, "others": 60.0, "matmuls": 30.0, "speed": 20.0, "measured": 1}'
    told = verdicts.columns(row | {"verdict_reason": "other_operators_most", "verdict_numbers": numbers})
    assert "Adam's element-wise update (aten::div) alone 25 %" in told["verdict_reason"]


@pytest.mark.parametrize("language", [language for language in LANGUAGES if language != "en"])
def test_translations_have_a_word_for_each_value(language):
    names = catalogue(language)["names"]
    assert set(names["mode"]) == set(get_args(WorkloadConfig.model_fields["mode"].annotation))
    assert set(names["cause"]) == {*verdict.CAUSES, "no_mfu", "not_explained"}
    assert set(names["compared"]) == set(compare.STYLES)
    assert set(names["status"]) == set(get_args(Status)) - {"ok"}


def test_no_name_is_its_own_value():
    assert all(word != value for words in catalogue("en")["names"].values() for value, word in words.items())


def literals(node: ast.AST) -> Iterator[str]:
    """The sentences that an expression may give, `1` where a value stands in one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "1" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from (*literals(node.body), *literals(node.orelse))


@pytest.mark.parametrize("folder", ["device/samplers", "device/vendors", "tracing"])
def test_reasons_of_readings_are_korean_in_korean(folder):
    said = []
    for path in (PACKAGE / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "missing" and len(node.args) == 3:
                said += literals(node.args[2])
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Reading", "readings")):
                said += [word for each in node.keywords if each.arg == "reason" for word in literals(each.value)]
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in (
                "reason",
                "refusal",
                "unreported",
                "NO_KERNELS",
            ):
                said += literals(node.value)
            elif isinstance(node, ast.FunctionDef) and node.name == "_without_operators":
                returned = (each.value for each in ast.walk(node) if isinstance(each, ast.Return))
                said += [word for value in returned for word in literals(value)]
    # What the driver answers is its own: an error's name and number, a field, a metric.
    said = [text for text in said if text and not re.match(r"1[;:] (1$|see )|metric 1", text)]
    assert len(said) > 3
    assert [text for text in said if not re.search("[가-힣]", Texts("ko").said(text))] == []


def test_what_each_kernel_adds_is_korean_in_korean():
    said = []
    for path in (PACKAGE / "kernels").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Assign):
                continue
            target, value = node.targets[0], node.value
            both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=True) if both else [(target, value)]
            said += [word for name, text in pairs if getattr(name, "id", "") == "adds" for word in literals(text)]
    assert len(said) > 40
    assert [text for text in said if not re.search("[가-힣]", Texts("ko").said(text))] == []


def test_the_seminar_s_numbers_are_korean_in_korean():
    code = {"prune.l1_unstructured", "from cuda.bindings import cublas"}
    said = {
        word
        for row in claims.recompute()
        for text in (row[name] for name in ("case", "formula", "answer", "note"))
        for word in text.split("; ")
    }
    words = {text for text in said if re.search("[a-z]{4}", text)} - code
    assert len(words) > 60
    assert {text for text in words if not re.search("[가-힣]", Texts("ko").said(text))} == set()


def test_that_code_has_changed_since_a_recording_is_korean_in_korean(tmp_path):
    write_json(tmp_path / "here" / records.ABOUT, {"code": {"count_flops": "of old"}})
    [said] = records.aged(tmp_path / "here")
    assert "1 of 1 measurements" in said
    korean = Texts("ko").said(said)
    assert "count_flops" in korean
    assert re.search("[가-힣]", korean)


@pytest.mark.parametrize(
    ("english", "korean"),
    [
        ("counts the same", "같은 값"),
        (
            "leaves out attention (4.3 GFLOP) and LSTM (0.5 GFLOP); counts the same",
            "빠뜨림: 어텐션 (4.3 GFLOP), LSTM (0.5 GFLOP); 같은 값",
        ),
        (
            "NVML: refused by the driver; trace: the trace estimates none",
            "NVML: 드라이버가 거부함; trace: 트레이스에 추정값이 없음",
        ),
        ("32 sectors; 4 if the threads lie in one row", "섹터 32개; 스레드가 한 행에 있으면 4개"),
        ("one thing; 8 rows", "one thing; 8행"),
        ("words of nobody", "words of nobody"),
    ],
)
def test_sentences_of_the_data_have_words(english, korean):
    assert Texts("ko").said(english) == korean
    assert Texts("en").said(english) == english


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_s_own_word_for_a_term_is_one(language):
    sections = catalogue(language)
    named = [word for words in sections["names"].values() for word in words.values()]
    texts = [*named, *(text for name, words in sections.items() if name != "names" for text in words.values())]
    foreign = "이용률|매개변수|[0-9}] %" if language == "ko" else "utilisation"
    assert [text for text in texts if re.search(foreign, text)] == []


def test_each_column_that_a_table_shows_at_first_has_a_korean_title():
    assert set(catalogue("ko")["names"]["column"]) == {name for each in TABLES.values() for name in each.shown.split()}
