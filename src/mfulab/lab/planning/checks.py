"""Checks a sweep before planning. Each mistake is reported in one sentence with the key, the value
and the choices."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from hydra.core.override_parser.types import Override, RangeSweep
from pydantic import BaseModel, TypeAdapter, ValidationError

from mfulab.core.configs import put
from mfulab.core.errors import ConfigurationError, shortened, unknown, whole_sentence
from mfulab.core.files import UnreadableError, read_text
from mfulab.core.parts import Values, leave_out
from mfulab.core.said import Said, as_told, of_source
from mfulab.core.yaml_text import load_yaml, parse_yaml
from mfulab.device.datasheets import typed_names
from mfulab.lab.planning.keys import OPEN, Experiment, choices, find_field, groups
from mfulab.measurements.registry import MEASUREMENTS

LONG = 1 << 16  # bytes of a file above which Hydra might parse it for minutes
MOST_VALUES = 100_000  # values of one key, and runs of one measurement: more is a mistake
PACKAGE = re.compile(r"^#\s*@package\s+_global_\s*$", re.MULTILINE)
# Facts of the device that rules may match in addition to keys: whether it emulates the format, its
# best 16-bit format, whether its memory is small.
OF_DEVICES = ("emulated", "best_16_bit", "is_small")
ALIASES = re.compile(r"[\s\[,{]\*\w")
KEYS = "config/KEYS.md"
# Keys with one value for all runs.
SINGLE = {
    "steps",
    "replicates",
    "ceiling_replicates",
    "short_processes",
    "budget_min",
    "hardware",
    "exclude",
    "first",
    "on_gpu",
    "device",
    "device.name",
    "device.type",
    "report.language",
    "report.rows",
    "report.text",
    "report.recorded",
}
# Keys of sentences for pydantic's errors about bounds, and about types.
BOUNDS = {
    "greater_than": "must_be_above",
    "greater_than_equal": "must_be_at_least",
    "less_than": "must_be_below",
    "less_than_equal": "must_be_at_most",
}
KINDS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must_be_whole_number"),
    **dict.fromkeys(("float_parsing", "float_type"), "must_be_number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must_be_switch"),
}


def experiment_file(path: Path) -> None:
    """Raises ConfigurationError if a file is not a valid experiment, for its first mistake."""
    try:
        text = read_text(path)
        content = parse_yaml(text)
    except UnreadableError as error:
        raise ConfigurationError(whole_sentence(error)) from error
    except ValueError as error:
        not_yaml = Said("not_yaml", file=str(path), error=str(error))
        raise ConfigurationError(not_yaml) from error
    refused = _why_no_experiment(content, text)
    if refused:
        raise ConfigurationError(of_source(str(path), refused))


def _why_no_experiment(content: Any, text: str) -> Said | None:
    """The first mistake in an experiment's file; None if there is none."""
    if content is None:
        return Said("experiment_empty")
    if not isinstance(content, dict):
        return Said("experiment_without_keys", kind=type(content).__name__)
    if not PACKAGE.search(text):
        return Said("experiment_without_package")
    for key, value in content.items():
        if value == "???":  # Hydra treats it as missing
            return Said("experiment_lacks", name=str(key))
    for key in ("hydra", "hydra.sweeper", "hydra.sweeper.params"):
        content = content.get(key.rpartition(".")[2]) or {}
        if not isinstance(content, dict):
            return Said("give_sweeper_params", name=key, value=shortened(content))
    return None


def yaml_bounds(folder: Path) -> None:
    """Raises ConfigurationError for a YAML file that is too long, too deep, or expands to too many
    values by aliases."""
    for path in sorted(folder.rglob("*.yaml")):
        with suppress(FileNotFoundError, UnreadableError):  # reported when the file is used
            is_long = path.stat().st_size > LONG
            if is_long or ALIASES.search(read_text(path, follow=True)):
                readable_yaml(path)


def readable_yaml(path: Path) -> None:
    """Raises ConfigurationError for a file that is not YAML or exceeds a bound."""
    try:
        load_yaml(path, follow=True)
    except (FileNotFoundError, UnreadableError) as error:
        raise ConfigurationError(whole_sentence(error)) from error


def overrides(words: Iterable[Override], config: Values, folder: Path, where: str = "") -> None:
    """Raises ConfigurationError for the first override that is not a key of `config`, an option of
    a group, or a valid value. `where` precedes the override in the message."""
    names = groups(folder)
    for override in words:
        key = override.key_or_group
        refused = _why_refused(override)
        if refused:
            raise ConfigurationError(of_source(f"{where}{override.input_line}", refused))
        if key in names:
            for choice in choices_of(override):
                check_choice(key, choice, folder, where)
            continue
        _check_key(key, config, names, where)
        if not override.is_sweep_override():
            text = override.get_value_element_as_str()
            if "${" not in text:
                check_values(key, [parsed(text)])


def _why_refused(override: Override) -> Said | None:
    """Reason why this project rejects an override, whatever the config; None if it does not."""
    key = override.key_or_group
    if override.is_delete() or override.package is not None:
        return Said("keys_stay")
    if re.split(r"[./]", key)[0] == "hydra":
        return Said("hydra_unused")
    if key in SINGLE and override.is_sweep_override():
        return Said("one_value_for_all")
    if key == "steps" and override.value() == []:
        return Said("nothing_to_measure", choices=", ".join(MEASUREMENTS))
    return None


def _check_key(key: str, config: Values, names: Iterable[str], where: str) -> None:
    """Raises ConfigurationError if `key` is neither in `config` nor a group in `names`."""
    node: Any = config
    parents: list[str] = []
    for part in key.split("."):
        if ".".join(parents) in OPEN:
            return
        siblings = node if isinstance(node, Mapping) else {}
        if part not in siblings:
            known = set(siblings)
            if not parents:
                known.update(names)
            dotted = [".".join([*parents, name]) for name in known]
            raise unknown(f"{where}key", shortened(key), dotted, KEYS)
        node = node[part]
        parents.append(part)


def choices_of(override: Override) -> list[str]:
    """Names in an override of a group, without quotes."""
    return [value.strip("'\"") for value in values_of(override)]


def values_of(override: Override) -> list[str]:
    """Values in an override, as text. Raises ConfigurationError if they are empty, infinite, too
    many or in random order."""
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    line = override.input_line or ""
    sweep = override.value()
    if not override.is_discrete_sweep():
        raise ConfigurationError(of_source(line, Said("interval_as_sweep")))
    if getattr(sweep, "shuffle", False):
        raise ConfigurationError(of_source(line, Said("shuffled_sweep")))
    is_endless = isinstance(sweep, RangeSweep) and not (
        sweep.step and abs((sweep.stop - sweep.start) / sweep.step) <= MOST_VALUES  # type: ignore[operator]
    )
    values = []
    if not is_endless:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST_VALUES + 1))
    if is_endless or len(values) > MOST_VALUES:
        too_many = Said("too_many_values", most=MOST_VALUES)
        raise ConfigurationError(of_source(shortened(line), too_many))
    if not values:
        raise ConfigurationError(of_source(line, Said("matches_nothing")))
    return values


def parsed(text: str) -> Any:
    """A text parsed as YAML; unchanged if it is not YAML, such as `@3`."""
    try:
        return parse_yaml(text)
    except ValueError:
        return text


def check_choice(group: str, choice: str, folder: Path, where: str = "") -> None:
    """Raises ConfigurationError if `choice` is not an option of `group`."""
    options = choices(folder, group)
    if choice in options:
        return
    if group == "device" and _is_product(choice):
        kinds = Said("give_kind_of_device", choices=", ".join(options))
        raise ConfigurationError(of_source(f"{where}device={choice}", kinds))
    listed = f"{folder / group}/"
    for step, measurement in MEASUREMENTS.items():
        if group in measurement.config.model_fields:
            listed = f"mfulab run {step} --help"
            break
    raise unknown(f"{where}{group}", shortened(choice), options, listed)


def _is_product(name: str) -> bool:
    """True if a device in the table of datasheets has this name, or a name that begins with it."""
    prefix = f"{name}-".lower()
    return any(f"{product}-".lower().startswith(prefix) for product in typed_names())


def composed(base: Values, swept: Values) -> None:
    """Raises ConfigurationError for the first invalid value of a composed config; `swept` replaces
    values of nested keys."""
    content = dict(base)
    for key, value in swept.items():
        put(content, key, value)
    _check_json("", content)
    try:
        checked = Experiment.model_validate(content)
    except ValidationError as error:
        raise validation_error(error, Experiment) from error
    for step in checked.steps:
        if step not in MEASUREMENTS:
            raise unknown("steps", step, MEASUREMENTS)
    for rule in checked.exclude:
        if "because" not in rule or len(rule) == 1:
            incomplete = Said("give_axes_and_because")
            raise ConfigurationError(of_source(f"exclude={shortened(rule)}", incomplete))
    if {} in checked.first:
        raise ConfigurationError(of_source("first={}", Said("give_axes")))
    for rule in checked.exclude:
        _check_rule("exclude", leave_out(rule, {"because"}))
    for rule in checked.first:
        _check_rule("first", rule)


def _check_rule(name: str, axes: Iterable[Any]) -> None:
    """Raises ConfigurationError for an axis that is neither a key nor a fact of the device."""
    known = [*_names(Experiment), *OF_DEVICES]
    for axis in axes:
        if str(axis).split(".")[0] not in known:
            raise unknown(name, shortened(axis), known, KEYS)


def _check_json(prefix: str, content: object) -> None:
    """Raises ConfigurationError for the first key or value in a tree that JSON lacks; the message
    names the key, after `prefix`."""
    inner: Iterable[tuple[Any, Any]]
    if isinstance(content, Mapping):
        inner = content.items()
    elif isinstance(content, list):
        inner = enumerate(content)
    else:
        inner = ()
    for key, value in inner:
        if not isinstance(key, str) and isinstance(content, Mapping):
            raise ConfigurationError(of_source(f"{prefix}{key}", Said("keys_are_words")))
        if isinstance(value, float) and not math.isfinite(value):
            finite = Said("give_finite_number")
            raise ConfigurationError(of_source(f"{prefix}{key}={value}", finite))
        _check_json(f"{prefix}{key}.", value)


def check_values(key: str, contents: Iterable[Any]) -> None:
    """Raises ConfigurationError for the first value that is invalid for `key`; conflicts with other
    keys are not checked."""
    _, field = find_field(Experiment, key.split("."))
    if field is None:  # a key of the user's own
        return
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[annotation, *field.metadata]
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    for content in contents:
        try:
            valid = adapter.validate_python(content)
        except ValidationError as error:
            raise validation_error(error, Experiment, *key.split(".")) from error
        if isinstance(content, bool) and not isinstance(valid, bool):
            raise ConfigurationError(of_source(f"{key}={content}", Said("give_no_switch")))


def validation_error(
    error: ValidationError, model: type[BaseModel], *prefix: str
) -> ConfigurationError:
    """Converts pydantic's first error about `model`, or about its nested field `prefix`."""
    first = error.errors(include_url=False)[0]
    where = [*prefix, *map(str, first["loc"])]
    internal = ("function-", "constrained-")
    key = ".".join(part for part in where if not part.startswith(internal)) or "config"
    given = shortened(first["input"])
    match first["type"]:
        case "extra_forbidden":
            return unknown("key", shortened(key), _siblings(model, where), KEYS)
        case "literal_error":
            return unknown(key, given, re.findall(r"'([^']*)'", first["ctx"]["expected"]))
        case "missing":
            return ConfigurationError(Said("key_missing", name=key))
        case "model_type" | "dict_type" | "model_attributes_type":
            keys = ", ".join(_siblings(model, [*where, ""])) or f"{key}.NAME"
            one_of_keys = Said("give_one_of_its_keys", names=keys)
            return ConfigurationError(of_source(f"{key}={given}", one_of_keys))
    subject = f"{key}={given}"
    if isinstance(first["input"], Mapping):  # its values conflict with one another
        subject = key
    reason = _advice(first["type"], key, given, model, where)
    if reason is None:
        reason = _pydantic_reason(first["type"], first["msg"])
    sentence = Said("whole_sentence", sentence=of_source(subject, reason))
    return ConfigurationError(sentence)


def _pydantic_reason(fault: str, message: str) -> Said:
    """Sentence of the catalogue for a value out of bounds or of a wrong type; else pydantic's own
    message."""
    if fault in BOUNDS:
        *_, bound = message.split()  # as pydantic writes it: 1e+38 in digits
        return Said(BOUNDS[fault], bound=bound)
    if fault in KINDS:
        return Said(KINDS[fault])
    reason = message.removeprefix("Value error, ")
    return as_told(reason.replace("Input should", "must").replace(" should ", " must "))


def _advice(
    fault: str, key: str, given: str, model: type[BaseModel], where: Sequence[str]
) -> Said | None:
    """Sentence that says what to give instead of a value of a wrong type or form; None if
    pydantic's message is enough."""
    match fault:
        case "list_type" if key == "exclude":
            return Said("give_rules")
        case "list_type":
            return Said("give_list", example=f"{key}=[{given}]")
        case "string_type":
            return Said("give_text", name=where[-1])
        case "string_pattern_mismatch":  # users need not know regular expressions
            field = find_field(model, where)[1]
            if field and field.description:
                return Said("give_meant", meaning=field.description.rstrip("."))
            return Said("give_plain_name")
    return None


def _siblings(model: type[BaseModel], where: Sequence[str]) -> list[str]:
    holder = find_field(model, where)[0]
    if holder:
        return [".".join([*where[:-1], name]) for name in _names(holder)]
    return []


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or key for key, field in model.model_fields.items()]


def run_counts(steps: Iterable[str], axes: Mapping[str, Sequence[Any]]) -> None:
    """Raises ConfigurationError if the axes of a measurement multiply to more than `MOST_VALUES` runs."""
    for step in steps:
        fields = MEASUREMENTS[step].config.model_fields
        read = [key for key in axes if key.split(".")[0] in fields]
        count = math.prod(len(axes[key]) for key in read)
        if count > MOST_VALUES:
            raise ConfigurationError(
                of_source(
                    step, Said("too_many_runs", keys=", ".join(read), count=count, most=MOST_VALUES)
                )
            )
