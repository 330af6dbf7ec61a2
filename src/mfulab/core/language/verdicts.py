"""Turns the keys and numbers in tables into sentences. A cell that cannot be read, and an unknown
key, are shown unchanged."""

from collections.abc import Mapping
from typing import Any

from mfulab.core.json_text import parse_json
from mfulab.core.language import Texts
from mfulab.core.language.sentences import reason, sentence
from mfulab.core.parts import Row, is_number
from mfulab.core.said import Said, of_cell

# Operators of an optimiser's update. Those in UPDATES occur in no model; those in IN_UPDATES count
# as the update only if the optimiser's phase takes at least as long as they do.
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

# Columns of a row that `columns` reads, and the name of the run that counted its FLOPs.
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

# Flags of a row that other processes or the machine slowed down. They are shown first, since its
# time, from which causes follow, is then not its own.
SLOW_STATES = "disturbed"
SLOWED_BY = ("other_processes", "beside", "stolen", SLOW_STATES)
PADDED_SIDE = ("side", "padded", "ms", "best_ms")  # numbers of the matmul with a side to pad


def say(said: Said, language: str = "en") -> str:
    """A sentence in words."""
    return sentence(said.key, said.numbers, language)


def message(cell: str | None, language: str = "en") -> str:
    """The words of a cell such as a row's `message`; a plain text is returned unchanged, "" if
    empty."""
    said = of_cell(cell or "")
    if said:
        return say(said, language)
    return ""


def keys(cell: str | None) -> frozenset[str]:
    """Keys of the sentences in a cell such as `verdict_flags`."""
    return frozenset(_read(cell))


def flags(cell: str | None, language: str = "en") -> str:
    """The sentences of a cell such as `verdict_flags` or `mfu_reason`, joined by semicolons; "" if
    empty."""
    return reason(_read(cell), language)


def reasons(cell: str | None, language: str = "en") -> str:
    """The sentences of a cell that maps columns to the reasons why they are empty, each preceded by
    its column."""
    return "; ".join(f"{column}: {reason(why, language)}" for column, why in _read(cell).items())


def note(row: Row, uncounted: str | None = None, language: str = "en") -> str:
    """The sentence of a row's `mfu_note`, or "". `uncounted` is the message of the run that counted
    the model's FLOPs, if any."""
    key = _text(row, "mfu_note")
    if key == "uncounted" and uncounted:
        key = "uncounted_because"
    precision = row.get("effective_precision") or row.get("precision")
    values = {"precision": precision, "basis": row.get("mfu_basis"), "message": uncounted}
    if key:
        return sentence(key, values, language)
    return ""


def columns(row: Row, uncounted: str | None = None, language: str = "en") -> dict[str, str]:
    """The verdict columns of a profile row in words; empty columns stay empty."""
    verdict = Texts(language).name("cause", _text(row, "verdict"))
    disturbed = disturbance(row, language)
    if disturbed:
        verdict = Texts(language, "verdict")("while_disturbed", cause=verdict)
    # Older tables and collected rows lack the number `beaten`.
    numbers = {"beaten": 0} | _read(_text(row, "verdict_numbers"))
    if "name" in numbers:
        numbers["name"] = operator(str(numbers["name"]), numbers.get("share"), row, language)
    reason = _text(row, "verdict_reason")
    explanation = sentence(reason, numbers, language) if reason else ""
    words = {
        "mfu_note": note(row, uncounted, language),
        "verdict": verdict,
        "verdict_reason": "; ".join(filter(None, [disturbed, explanation])),
        "verdict_flags": flags(_text(row, "verdict_flags"), language),
    }
    if "mfu_reason" in row:
        words["mfu_reason"] = flags(_text(row, "mfu_reason"), language)
    return words


def disturbance(row: Row, language: str = "en") -> str:
    """Says what slowed a row down, in addition to its verdict. "" if nothing did, there is no
    verdict, or the verdict says so itself. Slow states of the machine are named only if nothing
    else is, since other load causes them."""
    if _text(row, "verdict") in ("", "shared", "no_mfu"):
        return ""
    flagged = _read(_text(row, "verdict_flags"))
    slowed = {key: flagged[key] for key in SLOWED_BY if flagged.get(key)}
    if len(slowed) > 1:
        slowed.pop(SLOW_STATES, None)
    return reason(slowed, language)


def padded_side(row: Row) -> Mapping[str, float]:
    """Numbers of the matmul that gains most from padding a side. Empty if there is none, or if the
    cell, which may come from elsewhere, does not hold them."""
    numbers = _read(_text(row, "misaligned"))
    if all(is_number(numbers.get(name)) for name in PADDED_SIDE):
        return numbers
    return {}


def misaligned(row: Row, language: str = "en") -> str:
    """The sentence about the matmul that gains most from padding a side; "" if there is none."""
    numbers = padded_side(row)
    if numbers:
        return sentence("pad_side", numbers, language)
    return ""


def part_of_step(part: str, is_cpu: bool, text: Texts) -> str:
    """Name of a part of a step's time. A CPU runs operators and launches no kernels."""
    names = text.within("trace")
    if is_cpu and part == "idle":
        return names("idle_of_cpu")
    return names(part)


def operator(name: str, share: float | None, row: Row, language: str = "en") -> str:
    """An operator in words, followed by its name. In training, operators of the optimiser are
    called its update; common ones such as aten::mul only if its phase takes at least `share`
    percent."""
    text = Texts(language, "verdict")
    if is_update(name, share, row):
        optimizer = text.name("optimizer", _text(row, "optimizer"))
        return text("update", optimizer=optimizer, name=name)
    word = text.name("operator", name)
    if word == name:
        return name
    return f"{word} ({name})"


def is_update(name: str, share: float | None, row: Row) -> bool:
    """True for an operator of the optimiser's update. A common one such as aten::mul counts only if
    the optimiser's phase takes at least `share` percent of the step."""
    if row.get("mode") != "training":
        return False
    if name.startswith(UPDATES):
        return True
    phase_ms = row.get("optimiser_ms")
    time_s = row.get("time_s")
    if name not in IN_UPDATES or not (is_number(phase_ms) and is_number(time_s)):
        return False
    return is_number(share) and time_s > 0 and phase_ms / time_s / 10 >= share


def longest_operator(row: Row) -> tuple[str, float | None]:
    """Name of the operator that a verdict's sentence names, and its share in percent. The name is
    empty if there is none; the share is None if it is no number."""
    said = numbers_of(row)
    share = said.get("share")
    return str(said.get("name") or ""), share if is_number(share) else None


def numbers_of(row: Row) -> Mapping[str, Any]:
    """Numbers of the sentence of a row's verdict, by their names; empty if it has none."""
    return _read(_text(row, "verdict_numbers"))


def _text(row: Row, name: str) -> str:
    return str(row.get(name) or "")


def _read(cell: str | None) -> dict[str, Any]:
    try:
        content = parse_json(cell or "{}")
    except ValueError:
        return {str(cell): {}}
    if isinstance(content, dict):
        return content
    return {}
