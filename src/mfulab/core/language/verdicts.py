"""Sentences for the keys and numbers of tables; a cell that cannot be read, or an unknown key, is
shown as it is."""

from collections.abc import Mapping
from typing import Any

from mfulab.core.json_text import parse_json
from mfulab.core.language import Texts
from mfulab.core.language.sentences import reason, sentence
from mfulab.core.said import Said, of_cell

# Operators of an optimiser's update: those of no model, and those that are its own if its phase
# takes as long.
UPDATES = (
    "aten::addcdiv",
    "aten::addcmul",
    "aten::lerp",
    "aten::_foreach",
    "aten::_fused_adam",
    "aten::_fused_sgd",
)
IN_UPDATES = frozenset(
    {"aten::div", "aten::sqrt", "aten::mul", "aten::mul_", "aten::add", "aten::add_"}
)

# What `columns` reads of a row, and the run that counted its FLOPs.
READ = (
    "verdict",
    "verdict_reason",
    "verdict_numbers",
    "verdict_flags",
    "mfu_reason",
    "mfu_note",
    "mfu_basis",
    "effective_precision",
    "precision",
    "mode",
    "optimizer",
    "optimiser_ms",
    "time_s",
    "flops_run",
)

# Flags of a row that others, or the machine, slowed down: they are told before any cause that is
# read from its time.
SLOW_STATES = "disturbed"
SLOWED_BY = ("other_processes", "beside", "stolen", SLOW_STATES)


def say(said: Said, language: str = "en") -> str:
    """The words of a sentence."""
    return sentence(said.key, said.numbers, language)


def message(cell: str | None, language: str = "en") -> str:
    """The words of a cell such as a row's message; a text as it is, empty for an empty one."""
    said = of_cell(cell or "")
    if said:
        return say(said, language)
    return ""


def keys(cell: str | None) -> frozenset[str]:
    """Keys of the sentences in a cell such as `verdict_flags`; none of an empty one."""
    return frozenset(_read(cell))


def flags(cell: str | None, language: str = "en") -> str:
    """The sentences of a cell such as `verdict_flags` or `mfu_reason`, joined by semicolons; empty
    for an empty one."""
    return reason(_read(cell), language)


def reasons(cell: str | None, language: str = "en") -> str:
    """A cell of {column: why it is empty} as sentences, each behind its column."""
    return "; ".join(f"{column}: {reason(why, language)}" for column, why in _read(cell).items())


def note(row: Mapping[str, object], uncounted: str | None = None, language: str = "en") -> str:
    """The sentence of a row's `mfu_note`; empty without one. `uncounted` is the message of the
    model's FLOP count."""
    key = _text(row, "mfu_note")
    if key == "uncounted" and uncounted:
        key = "uncounted_because"
    precision = row.get("effective_precision") or row.get("precision")
    values = {"precision": precision, "basis": row.get("mfu_basis"), "message": uncounted}
    if key:
        return sentence(key, values, language)
    return ""


def columns(
    row: Mapping[str, object], uncounted: str | None = None, language: str = "en"
) -> dict[str, str]:
    """The verdict's columns of a profile row in words; an empty one stays empty."""
    cause = _text(row, "verdict")
    reason = _text(row, "verdict_reason")
    named = Texts(language).name("cause", cause)
    disturbed = disturbance(row, language)
    numbers = _read(_text(row, "verdict_numbers"))
    if "name" in numbers:
        numbers["name"] = operator(str(numbers["name"]), numbers.get("share"), row, language)
    why = {}
    if "mfu_reason" in row:
        why["mfu_reason"] = flags(_text(row, "mfu_reason"), language)
    return {
        "mfu_note": note(row, uncounted, language),
        "verdict": Texts(language, "verdict")("while_disturbed", cause=named)
        if disturbed
        else named,
        "verdict_reason": "; ".join(
            filter(None, [disturbed, sentence(reason, numbers, language) if reason else ""])
        ),
        "verdict_flags": flags(_text(row, "verdict_flags"), language),
        **why,
    }


def disturbance(row: Mapping[str, object], language: str = "en") -> str:
    """Words for what slowed down a row whose verdict names another cause; empty where nothing did.
    Slow states of the machine are told alone, as what else runs there brings them about."""
    if _text(row, "verdict") in ("", "shared", "no_mfu"):
        return ""
    flagged = _read(_text(row, "verdict_flags"))
    slowed = {key: flagged[key] for key in SLOWED_BY if flagged.get(key)}
    if len(slowed) > 1:
        slowed.pop(SLOW_STATES, None)
    return reason(slowed, language)


def padded_side(row: Mapping[str, object]) -> Mapping[str, float]:
    """Numbers of the matmul that padding a side helps most; empty without one."""
    return _read(_text(row, "misaligned"))


def misaligned(row: Mapping[str, object], language: str = "en") -> str:
    """The sentence on the matmul that padding a side helps most; empty without one."""
    numbers = padded_side(row)
    if numbers:
        return sentence("pad_side", numbers, language)
    return ""


def operator(
    name: str, share: float | None, row: Mapping[str, object], language: str = "en"
) -> str:
    """An operator in words, its name in parentheses: the update, if the optimiser's phase takes its
    `share` percent."""
    text = Texts(language, "verdict")
    if is_update(name, share, row):
        return text(
            "update", optimizer=text.name("optimizer", str(row.get("optimizer") or "")), name=name
        )
    word = text.name("operator", name)
    if word == name:
        return name
    return f"{word} ({name})"


def is_update(name: str, share: float | None, row: Mapping[str, object]) -> bool:
    """True for an operator of the optimiser's update, whose phase then takes its `share` percent."""
    if row.get("mode") != "training":
        return False
    phase_ms = row.get("optimiser_ms")
    time_s = row.get("time_s")
    is_measured = False
    if isinstance(phase_ms, int | float) and isinstance(time_s, int | float):
        is_measured = share is not None and time_s > 0 and phase_ms / time_s / 10 >= share
    return name.startswith(UPDATES) or (name in IN_UPDATES and is_measured)


def longest_operator(row: Mapping[str, object]) -> tuple[str, float | None]:
    """Name of the operator that a verdict's sentence names, and its percentage; an empty name
    without one."""
    numbers = _read(_text(row, "verdict_numbers"))
    return str(numbers.get("name") or ""), numbers.get("share")


def _text(row: Mapping[str, object], name: str) -> str:
    return str(row.get(name) or "")


def _read(cell: str | None) -> dict[str, Any]:
    try:
        content = parse_json(cell or "{}")
    except ValueError:
        return {str(cell): {}}
    if isinstance(content, dict):
        return content
    return {}
