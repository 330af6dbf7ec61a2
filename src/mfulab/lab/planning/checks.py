"""Mistakes in a sweep, each reported in one sentence with the key, the value and the choices,
before any planning."""

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
from mfulab.core.parts import Values
from mfulab.core.said import Numbers, Said, as_told, of_source
from mfulab.core.yaml_text import load_yaml, parse_yaml
from mfulab.device.datasheets import typed_names
from mfulab.lab.planning.keys import OPEN, Experiment, choices, find_field, groups
from mfulab.measurements.registry import MEASUREMENTS

LONG = 1 << 16  # bytes of a file, of which Hydra would read many values for minutes
MOST = 100_000  # values of one key, and runs of one measurement: more is a mistake
PACKAGE = re.compile(r"^#\s*@package\s+_global_\s*$", re.MULTILINE)
# What conditions may ask beside keys: whether a device emulates the format, its tensor cores' best
# format, its memory.
OF_DEVICES = ("emulated", "best_16_bit", "is_small")
ALIASES = re.compile(r"[\s\[,{]\*\w")
KEYS = "config/KEYS.md"
# Keys with one value for all runs.
ONE = {
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
# Sentences for what pydantic calls a number out of its bounds, and a value of another type.
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
    """Raises ConfigurationError if an experiment's file is none: for the first thing that is wrong
    with it."""
    try:
        text = read_text(path)
        content = parse_yaml(text)
    except UnreadableError as error:
        raise ConfigurationError(whole_sentence(error)) from error
    except ValueError as error:
        not_yaml = Said("not_yaml", {"file": str(path), "error": str(error)})
        raise ConfigurationError(not_yaml) from error
    refused = _why_no_experiment(content, text)
    if refused:
        raise ConfigurationError(of_source(str(path), refused))


def _why_no_experiment(content: Any, text: str) -> Said | None:
    """The first thing that is wrong with an experiment's file; None for nothing."""
    if content is None:
        return Said("experiment_empty")
    if not isinstance(content, dict):
        return Said("experiment_without_keys", {"kind": type(content).__name__})
    if not PACKAGE.search(text):
        return Said("experiment_without_package")
    for key, value in content.items():
        if value == "???":  # Hydra takes it for nothing
            return Said("experiment_lacks", {"name": str(key)})
    for key in ("hydra", "hydra.sweeper", "hydra.sweeper.params"):
        content = content.get(key.rpartition(".")[2]) or {}
        if not isinstance(content, dict):
            return Said("give_sweeper_params", {"name": key, "value": shortened(content)})
    return None


def anchors(folder: Path) -> None:
    """Raises ConfigurationError for a YAML file that is too long, or whose lists or aliases make more values
    of it than anyone means."""
    for path in sorted(folder.rglob("*.yaml")):
        with suppress(FileNotFoundError, UnreadableError):  # told where the file is used
            is_long = path.stat().st_size > LONG
            if is_long or ALIASES.search(read_text(path, follow=True)):
                whole_file(path)


def whole_file(path: Path) -> None:
    """Raises ConfigurationError for a file that is no YAML or beyond a bound."""
    try:
        load_yaml(path, follow=True)
    except (FileNotFoundError, UnreadableError) as error:
        raise ConfigurationError(whole_sentence(error)) from error


def overrides(parsed: Iterable[Override], config: Values, folder: Path, where: str = "") -> None:
    """Raises ConfigurationError for the first override that names no key of `config` or no option
    of a group."""
    names = groups(folder)
    for override in parsed:
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
                check_values(key, [plain(text)])


def _why_refused(override: Override) -> Said | None:
    """Reason why an override is none of this project's, whatever the config; None without one."""
    key = override.key_or_group
    if override.is_delete() or override.package is not None:
        return Said("keys_stay")
    if re.split(r"[./]", key)[0] == "hydra":
        return Said("hydra_unused")
    if key in ONE and override.is_sweep_override():
        return Said("one_value_for_all")
    if key == "steps" and override.value() == []:
        return Said("nothing_to_measure", {"choices": ", ".join(MEASUREMENTS)})
    return None


def _check_key(key: str, config: Values, names: Iterable[str], where: str) -> None:
    """Raises ConfigurationError if `config` has no such key, which may also be a group of
    `names`."""
    node: Any = config
    parents: list[str] = []
    for part in key.split("."):
        if ".".join(parents) in OPEN:
            return
        beside = node if isinstance(node, Mapping) else {}
        if part not in beside:
            known = set(beside)
            if not parents:
                known.update(names)
            beneath = [".".join([*parents, name]) for name in known]
            raise unknown(f"{where}key", shortened(key), beneath, KEYS)
        node = node[part]
        parents.append(part)


def choices_of(override: Override) -> list[str]:
    """The names that an override of a group gives, of which quotes are no part."""
    return [value.strip("'\"") for value in values_of(override)]


def values_of(override: Override) -> list[str]:
    """The values that an override gives, as text. Raises ConfigurationError if they are none or no
    end of them."""
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    line = override.input_line or ""
    sweep = override.value()
    if not override.is_discrete_sweep():
        raise ConfigurationError(of_source(line, Said("interval_as_sweep")))
    if getattr(sweep, "shuffle", False):
        raise ConfigurationError(of_source(line, Said("shuffled_sweep")))
    is_endless = isinstance(sweep, RangeSweep) and not (
        sweep.step and abs((sweep.stop - sweep.start) / sweep.step) <= MOST  # type: ignore[operator]
    )
    values = []
    if not is_endless:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST + 1))
    if is_endless or len(values) > MOST:
        too_many = Said("too_many_values", {"most": MOST})
        raise ConfigurationError(of_source(shortened(line), too_many))
    if not values:
        raise ConfigurationError(of_source(line, Said("matches_nothing")))
    return values


def plain(text: str) -> Any:
    """A value as YAML reads it; a text that is none, such as `@3`, as it stands."""
    try:
        return parse_yaml(text)
    except ValueError:
        return text


def check_choice(group: str, choice: str, folder: Path, where: str = "") -> None:
    """Raises ConfigurationError if `choice` is no option of `group`."""
    if choice not in (options := choices(folder, group)):
        if group == "device" and any(
            f"{name}-".lower().startswith(f"{choice}-".lower()) for name in typed_names()
        ):
            kinds = Said("give_kind_of_device", {"choices": ", ".join(options)})
            raise ConfigurationError(of_source(f"{where}device={choice}", kinds))
        readers = (
            step
            for step, measurement in MEASUREMENTS.items()
            if group in measurement.config.model_fields
        )
        listed = next((f"mfulab run {step} --help" for step in readers), f"{folder / group}/")
        raise unknown(f"{where}{group}", shortened(choice), options, listed)


def whole(base: Values, swept: Values) -> None:
    """Raises ConfigurationError for the first bad value of a composed config; `swept` are values of
    nested keys."""
    content = dict(base)
    for key, value in swept.items():
        put(content, key, value)
    _finite("", content)
    try:
        checked = Experiment.model_validate(content)
    except ValidationError as error:
        raise told(error, Experiment) from error
    for step in checked.steps:
        if step not in MEASUREMENTS:
            raise unknown("steps", step, MEASUREMENTS)
    for rule in checked.exclude:
        if "because" not in rule or len(rule) == 1:
            raise ConfigurationError(
                of_source(f"exclude={shortened(rule)}", Said("give_axes_and_because"))
            )
    if {} in checked.first:
        raise ConfigurationError(of_source("first={}", Said("give_axes")))
    for name, rules in (("exclude", checked.exclude), ("first", checked.first)):
        for key in (key for rule in rules for key in rule if (name, key) != ("exclude", "because")):
            if str(key).split(".")[0] not in (asked := [*_names(Experiment), *OF_DEVICES]):
                raise unknown(name, shortened(key), asked, KEYS)


def _finite(place: str, content: object) -> None:
    """Raises ConfigurationError, naming its key, for the first value in a tree that JSON cannot
    say."""
    inner: Iterable[tuple[Any, Any]]
    if isinstance(content, Mapping):
        inner = content.items()
    elif isinstance(content, list):
        inner = enumerate(content)
    else:
        inner = ()
    for key, value in inner:
        if not isinstance(key, str) and isinstance(content, Mapping):
            raise ConfigurationError(of_source(f"{place}{key}", Said("keys_are_words")))
        if isinstance(value, float) and not math.isfinite(value):
            finite = Said("give_finite_number")
            raise ConfigurationError(of_source(f"{place}{key}={value}", finite))
        _finite(f"{place}{key}.", value)


def check_values(key: str, contents: Iterable[Any]) -> None:
    """Raises ConfigurationError for the first that is no value of `key`; how keys go together is
    not looked at."""
    if (field := find_field(Experiment, key.split("."))[1]) is None:  # one of the user's own keys
        return
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[annotation, *field.metadata]
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    for content in contents:
        try:
            valid = adapter.validate_python(content)
        except ValidationError as error:
            raise told(error, Experiment, *key.split(".")) from error
        if isinstance(content, bool) and not isinstance(valid, bool):
            raise ConfigurationError(of_source(f"{key}={content}", Said("give_no_switch")))


def told(error: ValidationError, model: type[BaseModel], *prefix: str) -> ConfigurationError:
    """The sentence for what pydantic found first in `model`, or in its field `prefix`."""
    first = error.errors(include_url=False)[0]
    where = [*prefix, *map(str, first["loc"])]
    named = []
    for part in where:
        if not part.startswith(("function-", "constrained-")):
            named.append(part)
    key = ".".join(named) or "config"
    given = shortened(first["input"])
    match first["type"]:
        case "extra_forbidden":
            return unknown("key", shortened(key), _siblings(model, where), KEYS)
        case "literal_error":
            return unknown(key, given, re.findall(r"'([^']*)'", first["ctx"]["expected"]))
        case "missing":
            return ConfigurationError(Said("key_missing", {"name": key}))
        case "model_type" | "dict_type" | "model_attributes_type":
            keys = ", ".join(_siblings(model, [*where, ""])) or f"{key}.NAME"
            one = Said("give_one_of_its_keys", {"names": keys})
            return ConfigurationError(of_source(f"{key}={given}", one))
    named_value = f"{key}={given}"
    if isinstance(first["input"], Mapping):  # of which is wrong how its values go together
        named_value = key
    says = _advice(first["type"], key, given, model, where)
    if says is None:
        says = _of_pydantic(first["type"], first["msg"])
    whole = Said("whole_sentence", {"sentence": of_source(named_value, says)})
    return ConfigurationError(whole)


def _of_pydantic(fault: str, message: str) -> Said:
    """Says in the catalogue's words that a value is out of bounds or of another type; else gives
    pydantic's own."""
    if fault in BOUNDS:
        *_, bound = message.split()  # as pydantic writes it: 1e+38 in digits
        return Said(BOUNDS[fault], {"bound": bound})
    if fault in KINDS:
        return Said(KINDS[fault])
    says = message.removeprefix("Value error, ")
    return as_told(says.replace("Input should", "must").replace(" should ", " must "))


def _advice(
    fault: str, key: str, given: str, model: type[BaseModel], where: Sequence[str]
) -> Said | None:
    """Says what to give instead of a value of another type or form; None where pydantic's own message
    says it."""
    match fault:
        case "list_type" if key == "exclude":
            return Said("give_rules")
        case "list_type":
            return Said("give_list", {"example": f"{key}=[{given}]"})
        case "string_type":
            return Said("give_text", {"name": where[-1]})
        case "string_pattern_mismatch":  # a reader of regular expressions is not presumed
            field = find_field(model, where)[1]
            if field and field.description:
                return Said("give_meant", {"meaning": field.description.rstrip(".")})
            return Said("give_plain_name")
    return None


def _siblings(model: type[BaseModel], where: Sequence[str]) -> list[str]:
    holder = find_field(model, where)[0]
    if holder:
        return [".".join([*where[:-1], name]) for name in _names(holder)]
    return []


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or key for key, field in model.model_fields.items()]


def runs(steps: Iterable[str], axes: Mapping[str, Sequence[Any]]) -> None:
    """Raises ConfigurationError if a measurement's axes multiply to more runs than anyone means."""
    for step in steps:
        read = []
        for key in axes:
            if key.split(".")[0] in MEASUREMENTS[step].config.model_fields:
                read.append(key)
        if (count := math.prod(len(axes[key]) for key in read)) > MOST:
            counts: Numbers = {"keys": ", ".join(read), "count": count, "most": MOST}
            raise ConfigurationError(of_source(step, Said("too_many_runs", counts)))
