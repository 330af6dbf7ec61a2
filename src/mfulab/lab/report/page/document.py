"""Writes the report as one self-contained page: findings, figures, rows, environment and
definitions. It needs no network."""

import base64
import gc
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, Template
from markupsafe import Markup, escape

from mfulab.core.files import write_text
from mfulab.core.json_text import parse_json
from mfulab.core.language import Texts, catalogue, verdicts
from mfulab.core.language.quantities import quantity, significant
from mfulab.core.parts import Record
from mfulab.lab.planning.naming import MEASURE, OF_MAKE, SNAKEMAKE, in_language, short
from mfulab.lab.report import claims, figures, frames, selection, trust
from mfulab.lab.report.drawing import fonts, style, vector
from mfulab.lab.report.drawing import runs as marks
from mfulab.lab.report.figures import headroom as headroom_figure
from mfulab.lab.report.figures import mfu_versus_utilization
from mfulab.lab.report.page import payload, why
from mfulab.lab.runtime.forked import drawing_cores, in_processes
from mfulab.lab.tables import compare, seminar_texts
from mfulab.lab.tables.records import PROGRESS
from mfulab.measurements.registry import TABLES
from mfulab.mfu import headroom as budget
from mfulab.mfu import ladder

# in the style sheet, where the letters that the page needs are put once they are known
FONTS = "/* fonts */"
STYLE_HASH = "hash-of-the-style-sheet"  # in the policy, which stands before all texts
# Only the page's own script and style sheet, nothing from elsewhere. `style-src` is for attributes
# of elements, and for browsers that do not know style-src-elem.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:;"
    " base-uri 'none'; form-action 'none';"
)
SCRIPTS = (
    "report.js",
    "panel.js",
    "figures.js",
    "axes.js",
    "table.js",
    "run.js",
)  # one script of the page, in this order
UNKNOWN = 1e9  # a factor for times that may be off by any, since JSON has no infinity
# Tables of what a machine did; the others count, convert or read what others measured.
ON_A_MACHINE = (
    *("profile", "matmul", "readings", "split"),
    *("memory", "serving", "ceilings", "quality"),
)
MISSING = 12  # runs still to come that are named
COMPARED = 200  # lines of a comparison; the file has all
# Columns of environments that the page does not list.
NO_FACTS = {
    *("experiment", "run", "status", "machine", "process_s", "measured_s"),
    *frames.LABELLED,
    *frames.JUDGED,
}
FLAGS = (
    "verdict_flags",
    "window_source",
    "notes",
    "ended_by",
)  # keys and numbers, to be told as sentences
# a text, or a key and its numbers
SENTENCES = ("explanation", "flops_source", "message")
UNIT = re.compile(r"(?<=\d) (?=%|[kMGTPmnµ]?(?:s|B|J|W|Hz|FLOP|MAC)(?![A-Za-z]))")
POWER = re.compile(
    r"(?<![\w=.:/-])(\d[\d.]*)e([+-]\d+)(?![A-Za-z\d])"
)  # not that of a command's key=1e-05
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
PARTICLE = re.compile(r"(?<=[%)])(?=[가-힣])")
CODE = re.compile(r"`([^`]+)`")
SENTENCE = re.compile(r"(?<=\.) (?=[A-Z가-힣])")
BRIEF = 160  # letters
LISTED = 5  # reasons of one status that are told; runs with others are counted
WORDS = (
    *(
        "copied",
        "count",
        "no_column",
        "no_number",
        "row",
        "config",
        "log",
        "folder",
        "operators",
        "ranks",
        "samples",
    ),
    *("series", "selected", "select", "open"),
    *("difference", "points", "apart", "meet", "budget", "ladder", "times", "settings"),
    *("same_settings", "phases", "kernels", "timeline", "drill", "drill_help", "step", "rest"),
    *("phases_scaled", "other_operators", "matmuls"),
    *("side_by_side", "verdict", "percent_sign", "beyond", "unchanged"),
)
AGED = ("recording_aged", "recording_of_older_form")  # problems of recordings
TIMES = ("time_s", "samples_per_s")  # compared first of two runs side by side
# Words of the tables of a trace's operators and modules, and of its time.
ROOFLINE = (
    *(
        "operators",
        "operator",
        "shapes",
        "bound",
        "ms",
        "best",
        "headroom",
        "over_commits",
        "measured_at",
        "commit",
    ),
    *("modules", "module", "calls", "share", "gflop", "mfu"),
    *("uncounted", "graph", "communication", "copies", "input_wait", "idle", "idle_of_cpu"),
    *(
        "compute",
        "memory",
        "launch",
        "doubtful",
        "synchronisation",
        "starved",
        "queued",
        "unlinked",
    ),
)


def save(tables: Path, drawn: Path | None, out: Path, language: str) -> None:
    """Writes the page that `build` returns to `out`."""
    # drawing makes much that is collected, which need not look through all imports each time
    gc.freeze()
    write_text(out, build(tables, drawn, language))


def build(folder: Path, drawn: Path | None = None, language: str = "en") -> str:
    """Returns the page as text, from the tables in `folder` and figures already drawn in `drawn`.
    Missing ones are skipped or drawn anew."""
    tables, problems = frames.read(folder)
    text = Texts(language, "page")
    worded = _in_words(tables, language)
    tables = trust.judged(tables)
    worded = _with_reach(worded, tables)
    glyphs: dict[str, str] = {}
    sections = _sections(tables, drawn, text, problems, glyphs)
    shown = []
    for section in sections:
        shown += section["figures"]
    without = _without_both(tables)
    drawn_rows = {figure["name"]: figure.pop("rows") for figure in shown}
    held = set[why.Held]()
    for figure in shown:
        held |= figure.pop("held")
    marks = trust.marks(tables, [figure.pop("marks") for figure in shown])
    marked = _with_doubt_in_status(worded, tables, text)
    data, letters = payload.packed(payload.read(marked, folder, drawn_rows, text))
    words = _words(text)
    script = "\n".join(map(_file, SCRIPTS))
    excluded = _excluded(folder, text)
    content = _template().render(
        text=text,
        headline=_headline(shown, tables, without, text),
        unused=frames.unused(tables, language),
        give_peaks=_give_peaks(without, text),
        progress=_progress(folder, text),
        unmeasured=_unmeasured(worded, text),
        unmeasured_counts=_unmeasured_counts(worded, len(excluded), text),
        excluded=excluded,
        activates=_needs_environment(tables),
        comparison=_comparison(folder, text),
        sections=sections,
        glyphs=_defined(glyphs),
        has_rows=any(len(tables[name]) for name in TABLES),
        environment=_environment(tables, text),
        definitions=catalogue(language)["definitions"].items(),
        words=words,
        data=data,
        policy=Markup(f"{POLICY} script-src {_hash(script)}; style-src-elem {STYLE_HASH}"),
        css=Markup(_file("report.css")),
        javascript=Markup(script),
        **_runs_in_words(tables, problems, marks, text),
        **_why(held, tables, without.empty, language),
        **_seminar(folder, text),
    )
    faces = fonts.faces(content + letters + payload.as_json(words))
    css = _file("report.css").replace(FONTS, faces, 1)
    content = content.replace(STYLE_HASH, _hash(css), 1)
    return content.replace(FONTS, faces, 1)


def _words(text: Texts) -> Record:
    """Texts and colours for the page's script."""
    colors = {}
    for part, color in _inks().items():
        colors[f"{part}_ms"] = color
    return {
        "words": {key: text(key) for key in WORDS},
        "groups": _groups(text),
        "colors": colors,
    }


def _defined(glyphs: Mapping[str, str]) -> Markup:
    """Outlines of letters, by their ids."""
    paths = []
    for name, outline in glyphs.items():
        paths.append(f'<path id="{name}"{outline}/>')
    return Markup("".join(paths))


def _with_reach(worded: frames.Tables, judged: frames.Tables) -> frames.Tables:
    """Adds the factor by which times may be off, if any is, for the comparison of two runs on the
    page."""
    tables = dict(worded)
    for name in trust.STEPS:
        reach = judged[name][trust.REACH].clip(upper=UNKNOWN)
        if (reach > 1).any():
            tables[name] = worded[name].assign(**{trust.REACH: reach.where(reach > 1)})
    return tables


def _with_doubt_in_status(
    worded: frames.Tables, judged: frames.Tables, text: Texts
) -> frames.Tables:
    """Says in the status of doubtful steps and matmuls that they are, for the page's table and
    dialogs."""
    tables = dict(worded)
    doubtful = text.within("why")("doubtful")
    for name in trust.STEPS:
        status = worded[name]["status"]
        is_marked = trust.unsure(judged[name]) & (status == "ok")
        tables[name] = worded[name].assign(status=status.mask(is_marked, f"ok, {doubtful}"))
    return tables


def _hash(text: str) -> str:
    """Hash of a script or style sheet for the page's content security policy."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["unbroken"] = _unbroken
    environment.filters["breakable"] = _breakable
    environment.filters["marked"] = _with_code
    # the ladder and the budget keep their order
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return environment.from_string(_file("report.html"))


def _with_code(words: str) -> Markup:
    """Marks words between backticks as code."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(words))))


def _runs_in_words(
    tables: frames.Tables, problems: list[frames.Problem], marks: trust.Marks, text: Texts
) -> Record:
    """Texts on when runs were measured, how far to trust them, and faults of their files."""
    runs = frames.in_words(_runs(tables), text)
    provenance = style.provenance(runs, text)
    duty = trust.duty_cycle(runs[~runs["recorded"]])
    duty_words = ""
    if duty:
        duty_words = text("duty_cycle", duty=duty)
    doubts = trust.summary(tables, text.language, marks)
    again = doubts.again
    if again:
        again = in_language(again, text.language)
    urgent = []
    upkeep = []
    if runs.empty and tables["traces"].empty:
        urgent.append(text("no_rows"))
    for problem in problems:
        words = problem.in_words(text.language)
        if problem.of_recordings:
            upkeep.append(words)
        else:
            urgent.append(words)
    return {
        "provenance": provenance,
        "duty_cycle": duty_words,
        "precision": trust.precision(tables, text.language),
        "rows_shown": _rows_shown(runs, provenance, text),
        "aged": _aged(problems, runs, text),
        "doubts": {"says": doubts.headline, "lines": doubts.lines, "again": again},
        "problems": urgent,
        "upkeep": upkeep,
    }


def _why(held: set[why.Held], tables: frames.Tables, is_of_own: bool, language: str) -> Record:
    """Returns the section "Why", and lanes and lowest run of the first figure. If own steps lack
    MFU or utilization, there are none, except that a single trace stands in for the run."""
    charted = selection.drawable(mfu_versus_utilization, tables)
    if charted.empty or not is_of_own:
        section = why.section(tables, (), held, language)
        first = {}
        if section and _is_one_trace(tables):
            first = section["cases"][0] | {"because": section["cases"][0]["reason"]}
        return {"lanes": {}, "first": first, "why": section}
    lowest = selection.first_run(charted)
    first = why.first(tables, lowest, held, language)
    section = why.section(tables, selection.named_runs(charted), held, language)
    return {
        "lanes": why.lanes(charted, language),
        "first": first,
        "why": section,
    }


def _seminar(folder: Path, text: Texts) -> Record:
    """Numbers of the seminar, each with its words, and how many of them disagree."""
    lines = []
    wrong = 0
    for row in frames.texts(folder / "seminar.csv").to_dict("records"):
        lines.append(row | seminar_texts.in_words(row, text.language))
        wrong += row["agrees"] != "True"
    return {"seminar": lines, "wrong_in_seminar": wrong}


def _groups(text: Texts) -> dict[str, dict[str, str]]:
    """Columns that the page's script shows together, such as the parts of a step's time and the
    ladder, each with its name."""
    parts = text.within("trace")
    phases = text.within("why")
    rungs = text.within("rungs")
    of_traces = {key: parts(key) for key in ROOFLINE}
    for kind, name in budget.KINDS.items():
        of_traces[kind] = parts(name)
    of_traces["rest"] = text("rest")
    return {
        "budget": {f"{part}_ms": parts(part) for part in budget.PARTS},
        "phases": {f"{name}_ms": phases(name) for name in why.PHASES},
        "times": {column: text.name("column", column) for column in TIMES},
        "ladder": {rung.column: rungs(rung.column) for rung in ladder.RUNGS},
        "trace": of_traces,
    }


def _inks() -> dict[str, str]:
    """Colour of each part of a step's time, and of the kinds of a timeline. Matmuls get the colour
    of the useful part, which mostly consists of them."""
    parts = headroom_figure.COLORS
    kinds = {}
    for kind, part in budget.KINDS.items():
        if part in parts:
            kinds[kind] = parts[part]
    return parts | kinds | {"products": parts["useful"]}


def _in_words(tables: frames.Tables, language: str) -> frames.Tables:
    """Replaces the keys of verdicts, flags and notes in the tables by sentences in `language`."""
    flags = partial(verdicts.flags, language=language)
    message = partial(verdicts.message, language=language)
    say: dict[str, Callable[[str], str]] = dict.fromkeys(FLAGS, flags)
    say["reasons"] = partial(verdicts.reasons, language=language)
    say |= dict.fromkeys(SENTENCES, message)
    counts = {}
    for run, cell in zip(tables["flops"]["run"], tables["flops"]["message"], strict=True):
        counts[run] = message(cell)
    shown = {}
    for name, table in tables.items():
        words = _sentences(table, say)
        if "verdict_reason" in table:
            words |= _verdicts(table, counts, language)
            table = table.drop(columns="verdict_numbers")
        shown[name] = table.assign(**words)
    return shown


def _sentences(
    table: pd.DataFrame, say: Mapping[str, Callable[[str], str]]
) -> dict[str, pd.Series]:
    """Sentences in place of the keys in the columns that `say` names. The sentence on a run's end,
    if there is one, takes the place of its message."""
    words = dict[str, pd.Series]()
    for column, sentence in say.items():
        if column in table:
            cells = table[column]
            words[column] = cells.map({cell: sentence(cell) for cell in cells.unique()})
    if "ended_by" in words:
        ended = words["ended_by"]
        words["message"] = words["message"].where(ended == "", ended)
    return words


def _verdicts(
    table: pd.DataFrame, counts: Mapping[str, str], language: str
) -> dict[str, pd.Series]:
    """Columns with the words of each row's verdict. `counts` has the message of each count of
    FLOPs, by its run."""
    read = table[[name for name in verdicts.READ if name in table]]
    # Only the verdict on an operator is told by these two.
    of_operator = read["verdict_numbers"].str.contains('"name"', regex=False)
    for name in ("optimiser_ms", "time_s"):
        if name in read:
            read = read.assign(**{name: read[name].where(of_operator)})
    # Each distinct row is said once.
    alike = read.groupby(
        list(read),
        dropna=False,
        sort=False,
    ).ngroup()
    rows = []
    for row in read[~alike.duplicated()].to_dict("records"):
        rows.append(verdicts.columns(row, counts.get(row.get("flops_run")), language))
    columns = list(verdicts.columns(dict.fromkeys(table)))
    distinct = pd.DataFrame(rows, columns=columns, dtype=object)
    return dict(distinct.take(alike).set_axis(table.index).items())


def _file(name: str) -> str:
    templates = resources.files("mfulab.lab.report.page").joinpath("templates")
    return templates.joinpath(name).read_text(encoding="utf-8")


def _runs(tables: frames.Tables) -> pd.DataFrame:
    """All rows measured on a machine, with the columns that all tables share."""
    shared = [
        "hardware",
        "recorded",
        "experiment",
        "status",
        "started_at",
        "commit",
        "process_s",
        "measured_s",
    ]
    wanted = [tables[name][shared] for name in ON_A_MACHINE]
    return frames.with_machine(tables, pd.concat(wanted, ignore_index=True))


def _rows_shown(runs: pd.DataFrame, provenance: str, text: Texts) -> str:
    """Sentences on the experiments measured here, and on recorded machines that the line of
    `provenance` does not name."""
    own = runs.loc[~runs["recorded"], "experiment"]
    experiments = ", ".join(sorted(filter(None, own.unique())))
    recorded = []
    for machine in runs.loc[runs["recorded"], "machine"].unique():
        if machine not in provenance:
            recorded.append(machine)
    sentences = []
    if experiments:
        sentences.append(text("shown_experiments", names=experiments))
    if recorded:
        sentences.append(text("shown_recorded", names=", ".join(recorded)))
    if experiments:
        sentences.append(text("shown_all"))
    return " ".join(sentences)


def _aged(problems: Sequence[frames.Problem], runs: pd.DataFrame, text: Texts) -> str:
    """Sentence on the recorded machines whose measurements rest on code that has changed since, or
    may have; empty if there are none."""
    machines = dict(zip(runs["hardware"], runs["machine"], strict=True))
    parts = []
    for problem in problems:
        for key, numbers in parse_json(problem.said or "{}").items():
            if key in AGED:
                folder = Path(numbers["folder"]).name
                counts = {"count": numbers["number"], "total": numbers["total"]}
                machine = machines.get(folder, folder)
                parts.append(text("aged_part", machine=machine, **counts))
    if not parts:
        return ""
    return text("aged", machines="; ".join(parts))


def _progress(folder: Path, text: Texts) -> Record:
    """Counts of an unfinished sweep, a sentence on them, and the first missing runs. Empty if the
    sweep is finished."""
    planned = frames.texts(folder / "progress.csv")
    missing = planned[planned["state"] != PROGRESS[0]]
    if missing.empty:
        return {}
    counts = {state: int((planned["state"] == state).sum()) for state in PROGRESS}
    parts = []
    for state, count in counts.items():
        if count or state == PROGRESS[0]:
            parts.append(text(f"progress_{state}", count=count))
    listed = []
    for row in missing.head(MISSING).itertuples():
        listed.append(f"{row.step} {short(row.run)}")
    if len(missing) > MISSING:
        listed.append(text("progress_more", count=len(missing) - MISSING))
    return {
        "measured": counts[PROGRESS[0]],
        "total": len(planned),
        "says": f"{', '.join(parts)}.",
        "missing": listed,
    }


def _unmeasured_counts(tables: frames.Tables, excluded: int, text: Texts) -> str:
    """Sentences with the number of rows in each state that `_unmeasured` lists, and of runs
    `excluded` on purpose; empty if there are none."""
    shown = _own_if_any(tables)
    states = pd.concat([shown[name]["status"] for name in TABLES])
    counts = []
    for state, count in states[states != "ok"].value_counts().items():
        counts.append(
            text(
                "count_of",
                count=int(count),
                what=text.name("status", str(state)),
            )
        )
    notes = int((shown["profile"]["mfu_note"] != "").sum())
    if notes:
        counts.append(text("count_of", count=notes, what=text("suspicious")))
    sentences = []
    if counts:
        sentences.append(text("unmeasured_counts", counts=", ".join(counts)))
    if excluded:
        sentences.append(text("excluded_count", count=excluded))
    return " ".join(sentences)


def _needs_environment(tables: frames.Tables) -> bool:
    """True if something was measured here in the environment that `make` installed, which the
    page's commands do not name."""
    has_own = any((~tables[name]["recorded"]).any() for name in trust.STEPS)
    return has_own and OF_MAKE.exists() and str(OF_MAKE) != SNAKEMAKE


def _own_if_any(tables: frames.Tables) -> frames.Tables:
    """Returns the tables with only the rows of this machine, or all rows if it has none."""
    if all(tables[name]["recorded"].all() for name in TABLES):
        return tables
    return {name: table[~table["recorded"]] for name, table in tables.items()}


def _unmeasured(tables: frames.Tables, text: Texts) -> list[str]:
    """Texts on rows that were not measured, and on rows with a suspicious MFU. They are about
    recorded machines only if there are no others."""
    lines = []
    shown = _own_if_any(tables)
    for name in TABLES:
        table = shown[name]
        for status, rows in table[table["status"] != "ok"].groupby("status", sort=False):
            word = text.name("status", str(status))
            alike = list(rows.groupby("message", sort=False)["run"])
            for message, runs in alike[:LISTED]:
                lines.append(_of_runs(runs, f"{word}. {message}".strip(), text))
            more = sum(len(runs) for _, runs in alike[LISTED:])
            if more:
                lines.append(
                    text(
                        "more_unmeasured",
                        count=more,
                        status=word,
                        table=name,
                    )
                )
    traces = tables["traces"]
    lines += _with_notes(shown["profile"], "mfu_note", text)
    lines += _with_notes(traces[~traces["recorded"]], "mfu_reason", text)
    return lines


def _with_notes(rows: pd.DataFrame, column: str, text: Texts) -> list[str]:
    """A text for each distinct note in a column."""
    noted = rows[rows[column] != ""]
    lines = []
    for note, runs in noted.groupby(column, sort=False)["run"]:
        lines.append(_of_runs(runs, str(note), text))
    return lines


def _of_runs(runs: pd.Series, note: str, text: Texts) -> str:
    """A note on runs, of which the first is named."""
    example = runs.iloc[0]
    if len(runs) == 1:
        return f"{example}: {note}"
    return text("note", count=len(runs), example=example, note=note)


def _sections(
    tables: frames.Tables,
    drawn: Path | None,
    text: Texts,
    problems: list[frames.Problem],
    glyphs: dict[str, str],
) -> list[Record]:
    """Returns the topics that have figures, in order. Appends failures to `problems`, and outlines
    of letters to `glyphs`."""
    experiments = _experiments(tables)
    rows = figures.page_rows(tables)

    def make(name: str) -> Record | str:
        try:
            return _figure(
                name,
                rows[name],
                tables,
                drawn,
                text.within(name),
                experiments,
            )
        except Exception as error:  # one figure never costs the page
            return figures.unmade(name, error, text.language)

    by_topic: dict[str, list[Record]] = {topic: [] for topic in figures.TOPICS}
    # What is drawn already costs less than a process that has no core to itself.
    if drawn is None or drawing_cores() >= figures.FEW_CORES:
        made = in_processes(make, list(rows))
    else:
        made = list(map(make, rows))
    for name, figure in zip(rows, made, strict=True):
        if isinstance(figure, str):
            problems.append(frames.Problem(figure))
            continue
        if not figure:
            continue
        try:
            figure["svg"] = Markup(vector.inline(figure["svg"], name, glyphs))
        except Exception as error:
            problems.append(frames.Problem(figures.unmade(name, error, text.language)))
            continue
        by_topic[figures.modules()[name].TOPIC].append(figure)
    sections = []
    for topic, shown in by_topic.items():
        if shown or topic == "why":  # which has cases even where no run has a headroom to draw
            title = text(f"topic_{topic}")
            sections.append({"topic": topic, "title": title, "figures": shown})
    return sections


def _experiments(tables: frames.Tables) -> list[str]:
    """Experiments of the page's figures, for the commands that draw them anew. Those of recorded
    machines are not to be measured here."""
    runs = _runs(tables)
    own = runs.loc[~runs["recorded"], "experiment"]
    experiments = list(filter(None, own.unique()))
    if not experiments and len(runs):
        return ["recorded"]
    return experiments


def _figure(
    name: str,
    rows: pd.DataFrame | None,
    tables: frames.Tables,
    drawn: Path | None,
    text: Texts,
    experiments: Sequence[str],
) -> Record:
    """Returns a figure with its sentence, rows and command; empty if it has no rows. If `rows` is
    None, they are selected from the tables."""
    module = figures.modules()[name]
    if rows is None:
        rows = selection.drawable(module, tables)
    if rows.empty:
        return {}
    drawing = vector.saved(drawn, name)
    finding = None
    if drawing is None and (rendered := figures.render(name, tables, text.language, rows)):
        drawing = vector.parsed(marks.svg(rendered.figure))
        finding = rendered.finding
    drawn_marks = claims.marks_of(module, rows)
    rows = frames.in_words(rows, text)
    finding = _unbroken(finding or figures.finding(module, rows, text))
    return {
        "name": name,
        "title": text("title"),
        "finding": finding,
        "brief": _brief(finding),
        "marks": drawn_marks,
        "left_out": _unbroken(figures.left_out(name, rows, text)),
        "reading": _unbroken(figures.reading(module, rows, text)),
        "selected": _unbroken(figures.selected(name, rows, text)),
        "svg": drawing,
        "held": _held(name, rows),
        "rows": payload.drawn(rows),
        "command": figures.command(name, experiments, text.language),
    }


def _held(name: str, rows: pd.DataFrame) -> set[why.Held]:
    """Machines and modes of a figure's rows; empty if the rows belong to no machine."""
    if "machine" not in rows:
        return set()
    if "mode" not in rows:
        rows = rows.assign(mode="")
    pairs = rows[["machine", "mode"]].drop_duplicates()
    return {why.Held(name, *pair) for pair in pairs.itertuples(index=False, name=None)}


def _brief(finding: str) -> str:
    """The first sentences of a finding, of BRIEF letters at most if possible, for the title line of
    a folded topic."""
    brief = ""
    for sentence in SENTENCE.split(finding):
        longer = f"{brief} {sentence}".strip()
        if brief and len(longer) > BRIEF:
            break
        brief = longer
    return brief


def _headline(
    shown: list[Record], tables: frames.Tables, without: pd.DataFrame, text: Texts
) -> str | None:
    """The first sentence of the page: that of the first figure, or of a trace if only one was read.
    If every run failed, the first failure."""
    measured = any((tables[name]["status"] == "ok").any() for name in trust.STEPS)
    failure = trust.failed(tables, text.language)
    if failure and not measured:
        return failure
    lacking = frames.with_machine(tables, without)
    if len(lacking):
        best = lacking.sort_values("mfu_percent", ascending=False).iloc[0]
        if best["mfu_percent"] == best["mfu_percent"]:
            return text("no_utilization", best=best)
        note = verdicts.columns(best.to_dict(), None, text.language)["mfu_note"]
        return f"{best['machine']}: {note}."
    if shown and not _is_one_trace(tables):
        return shown[0]["finding"]
    return why.of_traces(tables, text)


def _give_peaks(without: pd.DataFrame, text: Texts) -> str:
    """Command with placeholders for the peaks that the user has to set; empty if all are known."""
    formats = sorted(without.loc[without["mfu_note"] == "no_peak", "peak_precision"].unique())
    if not formats:
        return ""
    peaks = " ".join(f"device.peak_tflop_s.{name}=…" for name in formats)
    return in_language(f"{MEASURE} --config overrides='{peaks}'", text.language)


def _is_one_trace(tables: frames.Tables) -> bool:
    """True if a single step was measured here, and it was read from a trace."""
    steps = frames.ok(frames.own_or_recorded(frames.with_traces(tables)), "time_s")
    if len(steps) != 1:
        return False
    step = steps.iloc[0]
    return bool(step["is_read"] and not step["recorded"])


def _without_both(tables: frames.Tables) -> pd.DataFrame:
    """Steps measured here, if none has both MFU and utilization; else empty. The figure of both
    then shows recorded machines."""
    steps = frames.ok(tables["profile"], "time_s")
    steps = steps[~steps["recorded"]]
    if steps[["mfu_percent", "utilization_percent"]].notna().all(axis=1).any():
        return steps.iloc[:0]
    return steps


def _unbroken(words: str) -> str:
    """Binds each unit to its number, and Korean particles to the sign before them. Writes 1e-05 as
    1 × 10⁻⁵."""
    words = UNIT.sub("\N{NO-BREAK SPACE}", words)
    words = PARTICLE.sub("\N{WORD JOINER}", words)
    return POWER.sub(_raised, words)


def _raised(match: re.Match[str]) -> str:
    """Writes a number with an exponent as a product with a power of ten."""
    exponent = str(int(match[2])).translate(RAISED)
    return f"{match[1]}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}10{exponent}"


def _breakable(words: str) -> Markup:
    """Lets a run's name break behind its commas, before it breaks anywhere."""
    return Markup(re.sub(r",(?=\S)", ",<wbr>", str(escape(words))))


def _excluded(folder: Path, text: Texts) -> list[Record]:
    """Runs left out on purpose. A reason of the shipped experiments is in the page's language, a
    user's own is left as it is."""
    runs = frames.texts(folder / "excluded.csv").to_dict("records")
    return [run | {"because": text.name("excluded", run["because"])} for run in runs]


def _comparison(folder: Path, text: Texts) -> Record:
    """Runs compared with an earlier sweep: counts, a line for each run with a ratio, and reasons of
    the others. Empty without a comparison."""
    rows = compare.read(folder / "comparison.csv")
    if rows.empty:
        return {}
    numbers = ["old_s", "new_s", "ratio", "ratio_low", "ratio_high"]
    rows[numbers] = rows[numbers].apply(pd.to_numeric, errors="coerce")
    counts = []
    for says, count in rows["verdict"].value_counts().items():
        counts.append(f"{text.name('compared', str(says))} {count}")
    lines = []
    for _, row in rows[rows["ratio"] > 0].head(COMPARED).iterrows():
        lines.append(_compared(row, text))
    without = []
    for why_not, count in rows.loc[rows["ratio"].isna(), "because"].value_counts().items():
        because = verdicts.message(str(why_not), text.language)
        without.append(text("incomparable", count=count, because=because))
    return {
        "says": text(
            "compared",
            count=len(rows),
            counts=", ".join(counts),
        ),
        "folders": list(filter(None, rows[["old", "new"]].iloc[0])),
        "lines": lines,
        "others": without,
    }


def _compared(row: pd.Series, text: Texts) -> Record:
    """A line of the comparison: times before and after, their ratio, and its bounds."""
    bounds = []
    for end in ("ratio_low", "ratio_high"):
        if row[end] > 0:
            bounds.append(compare.change(row[end]))
    return {
        "run": row["run"],
        "short": short(row["run"]),
        "verdict": row["verdict"],
        "word": text.name("compared", row["verdict"]),
        "because": verdicts.message(row["because"], text.language),
        "ratio": text.written(compare.change(row["ratio"])),
        "bounds": text.written(" … ".join(bounds)),
        "old": quantity(row["old_s"], "s"),
        "new": quantity(row["new_s"], "s"),
    }


def _environment(tables: frames.Tables, text: Texts) -> Record:
    """Facts on each machine, and the machines' names."""
    rows = frames.with_machine(tables, tables["environment"])
    rows = rows.drop_duplicates("machine", keep="last")
    facts = []
    for name in rows:
        if name in NO_FACTS:
            continue
        values = [_fact(name, value) for value in rows[name]]
        if any(values):
            facts.append((name, values))
    return {"machines": list(frames.in_words(rows, text)["machine"]), "facts": facts}


def _fact(name: str, value: Any) -> str:
    """Formats a value for people: bytes with a unit, JSON as lines."""
    if pd.isna(value) or value == "":
        return ""
    if isinstance(value, str):
        return _lines(value)
    if name.endswith("_bytes"):
        return f"{significant(value / 2**30)} GiB"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _lines(value: str) -> str:
    try:
        data = parse_json(value)
    except ValueError:
        return value
    if isinstance(data, dict):
        return "\n".join(f"{name} {entry}" for name, entry in data.items())
    if isinstance(data, list) and data and all(isinstance(entry, dict) for entry in data):
        return "\n\n".join(_lines(json.dumps(entry, ensure_ascii=False)) for entry in data)
    return value
