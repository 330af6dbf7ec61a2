"""`mfulab explain key=value …`: converts a speed to MFU by each convention of the field, and finds
the conventions that give a reported number."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import click

from mfulab.cli.options import AS_JSON, DEVICE, LANGUAGE, MODEL, PRECISION, Overrides, command
from mfulab.core.answer import Answer, Doubt, answered
from mfulab.core.errors import ConfigurationError, lacks, shortened, unknown
from mfulab.core.groups import ModelConfig
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import in_percent, quantity, significant
from mfulab.core.parts import is_number
from mfulab.core.printing import say_json
from mfulab.core.said import Numbers, Said
from mfulab.core.terminal import Terminal, table
from mfulab.device.peaks import peak
from mfulab.mfu.explain import Explanation
from mfulab.mfu.models import model_config, read_yaml
from mfulab.mfu.roofline import Expectation
from mfulab.mfu.work import Mode
from mfulab.models.work import expect, explain

COUNTS = ("sequence_length", "batch_size", "devices")
NUMBERS = (*COUNTS, "tokens_per_s", "samples_per_s", "time_s", "reported", "peak_tflop_s")
SPEEDS = {"tokens_per_s", "samples_per_s", "time_s"}
TEXTS = ("model", "device", "precision", "mode")
WIDTH = 80  # columns if stdout is not a terminal
LARGEST = 1e30  # largest number; the smallest is its inverse


class Question(Overrides):
    """The command's `key=value` words, with completion in a shell."""

    def choices(self) -> Mapping[str, Iterable[str]]:
        types = {"model": MODEL, "device": DEVICE, "precision": PRECISION}
        names = {key: type_.choices() for key, type_ in types.items()}
        return dict.fromkeys(NUMBERS, ()) | {"mode": get_args(Mode)} | names


@command(
    "explain",
    'explain model=llama_3_1_8b device="NVIDIA H100 80GB HBM3" tokens_per_s=5762 reported=46.4',
    more=(
        "tokens_per_s and samples_per_s are of all devices together; time_s is that of a step. "
        "batch_size is always the samples of a step on each device, and goes with time_s or with "
        "no speed. Without a speed: the time that the device's roofline allows, and the memory "
        "that a step needs."
    ),
)
@click.argument("words", nargs=-1, type=Question(), metavar="KEY=VALUE…", required=True)
@AS_JSON
@LANGUAGE
def show(words: Sequence[str], as_json: bool, language: str) -> int:
    """Answers a question in `key=value` words. Returns 1 if no convention gives the reported
    number, else 0."""
    given, changes = _read(words)
    config = model_config(given.pop("model", ""), changes, given.get("sequence_length"))
    if "device" not in given:
        raise ConfigurationError(Said("device_missing"))
    if not SPEEDS & given.keys():
        _show_expected(config, given, as_json, language)
        return 0
    explanation = explain(config, **given)
    if as_json:
        details = {**asdict(explanation), "may_be_chance": explanation.may_be_chance}
        details.pop("peaks")  # the same names once more
        say_json(_answer(explanation).line(details))
    else:
        console = Terminal.wide(WIDTH)
        for line in explanation.lines(language):
            console.print(line.text, style=line.style)
    if explanation.reported is None or explanation.matches:
        return 0
    return 1


def _answer(explanation: Explanation) -> Answer:
    """MFU by this project's convention. It is doubtful if no convention gives the reported number,
    or one may do so by chance."""
    ours = explanation.ours
    doubt: Doubt = {}
    if ours.mfu_percent > 100:
        doubt["over_peak"] = {}
    if explanation.reported is not None and not explanation.matches:
        doubt["no_convention"] = {"reported": explanation.reported, "tried": explanation.tried}
    if explanation.may_be_chance:
        doubt["may_be_chance"] = {"percent": explanation.chance_percent}
    return _of_peak(ours.mfu_percent, ours.peak_tflop_s, doubt)


def _of_peak(mfu_percent: float, tflop_s: float | None, doubt: Mapping[str, Numbers]) -> Answer:
    return answered(
        mfu_percent,
        "%",
        "spec",
        denominator=tflop_s,
        denominator_unit="TFLOP/s",
        doubt=doubt,
    )


def _show_expected(
    config: ModelConfig, asked: dict[str, Any], as_json: bool, language: str
) -> None:
    """For a question without a speed: prints the MFU that the device's roofline allows, and the
    memory per device. Raises ConfigurationError for keys that need a speed."""
    useless = sorted({"reported", "peak_tflop_s"} & asked.keys())
    if useless:
        raise ConfigurationError(
            Said("needs_speed", keys=", ".join(useless), speeds=", ".join(sorted(SPEEDS)))
        )
    modes = None
    if "mode" in asked:
        modes = (asked.pop("mode"),)
    device = asked.pop("device")
    precision = asked.pop("precision", "bf16")
    expectations = expect(config, device, precision, modes=modes, **asked)
    if not as_json:
        setup = Setup(device, precision, asked.get("devices", 1), asked.get("batch_size", 1))
        _print_expected(config, setup, expectations, Texts(language, "explain"))
        return
    peak_tflop_s = peak(device, precision).spec
    for expectation in expectations:
        say_json(_expected(expectation, peak_tflop_s).line(asdict(expectation)))


def _expected(expectation: Expectation, peak_tflop_s: float | None) -> Answer:
    """The MFU that a roofline allows, with a doubt if the step does not fit in memory."""
    doubt: Doubt = {}
    if expectation.fits is False:
        doubt["does_not_fit"] = {"bytes": expectation.memory_bytes}
    return _of_peak(expectation.mfu_percent, peak_tflop_s, doubt)


@dataclass(frozen=True)
class Setup:
    """Devices of an expected step: name, number, number format, and samples on each."""

    device: str
    precision: str
    devices: int
    samples: int


def _print_expected(
    config: ModelConfig, setup: Setup, expectations: Sequence[Expectation], text: Texts
) -> None:
    console = Terminal.wide(WIDTH)
    key = "on_each" if setup.devices > 1 else "on_one"
    devices = text(key, device=setup.device, count=setup.devices)
    console.print(
        text(
            "at_best",
            whose=devices,
            model=config.name,
            precision=setup.precision,
            samples=setup.samples,
        )
    )
    heads = [_mode_name(expectation, config, text) for expectation in expectations]
    shown = table([text("step_of")], heads)
    unit = "tokens" if config.vocabulary_size else "samples"
    columns = [_column(expectation, unit, text) for expectation in expectations]
    for name in columns[0]:
        shown.add_row(name, *(column[name] for column in columns))
    console.print(shown)
    for line in _assumptions(setup, expectations, text):
        console.print(line)


def _assumptions(setup: Setup, expectations: Sequence[Expectation], text: Texts) -> Iterator[str]:
    """Yields lines about the assumptions of the table and what it leaves out."""
    yield text("kept_is")
    if any(expectation.others_s is None for expectation in expectations):
        lacking = lacks(text("without_torch"), "torch")
        assert lacking is not None
        yield verdicts.say(lacking, text.language)
    assumptions = dict.fromkeys(expectation.assumes for expectation in expectations)
    yield from filter(None, assumptions)
    if setup.devices > 1:
        yield text("shared")
    elif any(expectation.fits is False for expectation in expectations):
        yield text("share_it")


def _mode_name(expectation: Expectation, config: ModelConfig, text: Texts) -> str:
    mode = expectation.mode
    if config.vocabulary_size and mode == "inference":
        return text.name("mode", "prefill")
    return text.name("mode", mode)


def _column(expectation: Expectation, unit: str, text: Texts) -> dict[str, str]:
    """Cells of an expectation by the names of their rows; empty if unknown."""
    unfused = ""
    if expectation.unfused_mfu_percent is not None:
        unfused = in_percent(expectation.unfused_mfu_percent)
    kept = ""
    if expectation.memory_bytes is not None:
        kept = quantity(expectation.memory_bytes, "B")
    too_large = {True: "", False: text("yes"), None: "?"}
    return {
        text("time"): quantity(expectation.products_s, "s"),
        text(f"{unit}_per_s"): significant(expectation.tokens_per_s, 4),
        "MFU": text.written(in_percent(expectation.mfu_percent)),
        text("unfused"): text.written(unfused),
        text("compute_bound"): text.written(quantity(expectation.compute_bound_percent, "%")),
        text("kept"): kept,
        text("too_large"): too_large[expectation.fits],
    }


def _read(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parses words into keys of the question and dotted keys of the model, with values read as
    YAML. Raises ConfigurationError for an unknown key."""
    question = dict[str, Any]()
    changes = dict[str, Any]()
    for word in words:
        key, separator, text = word.partition("=")
        if not separator:
            raise ConfigurationError(Said("give_key_value", word=shortened(word)))
        value = read_yaml(text)
        if key.startswith("model."):
            changes[key.removeprefix("model.")] = value
        elif key in TEXTS:
            question[key] = text
        elif key not in NUMBERS:
            raise unknown("key", key, (*TEXTS, *NUMBERS))
        else:
            question[key] = _number(key, text, value)
    if "model" not in question and not changes:
        raise ConfigurationError(Said("model_missing"))
    return question, changes


def _number(key: str, text: str, value: Any) -> float:
    """Checks a number of the question. Raises ConfigurationError if it is not a number, should be
    whole, or exceeds the bounds."""
    is_whole = key in COUNTS
    if not is_number(value) or (is_whole and value % 1 != 0):
        wanted = "give_whole_number" if is_whole else "give_number"
        raise ConfigurationError(Said(wanted, word=f"{key}={shortened(text)}"))
    if abs(value) > LARGEST or 0 < abs(value) < 1 / LARGEST:
        word = f"{key}={shortened(text)}"
        within = Said("give_number_within", word=word, least=1 / LARGEST, most=LARGEST)
        raise ConfigurationError(within)
    if is_whole:
        return int(value)
    return value
