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
from mfulab.core.errors import ConfigurationError, shortened, unknown
from mfulab.core.files import UnreadableError, read_text
from mfulab.core.parts import Values
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


def experiment_file(path: Path) -> None:
    """Raises ConfigurationError if an experiment's file is none: for the first thing that is wrong
    with it."""
    try:
        text = read_text(path)
        content = parse_yaml(text)
    except UnreadableError as error:
        raise ConfigurationError(f"{error}.") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: not YAML ({error}).") from error
    if content is None:
        raise ConfigurationError(
            f"{path}: empty. Give `steps` and what they sweep: config/README.md has an example."
        )
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{path}: holds a {type(content).__name__}. Give keys, such as steps: [profile_step]."
        )
    if not PACKAGE.search(text):
        raise ConfigurationError(
            f"{path}: begin it with the line `# @package _global_`, else it sets nothing."
        )
    if missing := next(
        (key for key, value in content.items() if value == "???"), None
    ):  # Hydra takes it for nothing
        raise ConfigurationError(f"{path}: {missing}=???: missing. Give a value, or leave it out.")
    for key in ("hydra", "hydra.sweeper", "hydra.sweeper.params"):
        if not isinstance(content := content.get(key.rpartition(".")[2]) or {}, dict):
            raise ConfigurationError(
                f"{path}: {key}={shortened(content)}: give sweeper: {{params: {{KEY: VALUES}}}}."
            )


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
        raise ConfigurationError(f"{error}.") from error


def overrides(parsed: Iterable[Override], config: Values, folder: Path, where: str = "") -> None:
    """Raises ConfigurationError for the first override that names no key of `config` or no option
    of a group."""
    names = groups(folder)
    for override in parsed:
        key = override.key_or_group
        refused = _why_refused(override)
        if refused:
            raise ConfigurationError(f"{where}{override.input_line}: {refused}")
        if key in names:
            for choice in choices_of(override):
                check_choice(key, choice, folder, where)
            continue
        _check_key(key, config, names, where)
        if not override.is_sweep_override():
            text = override.get_value_element_as_str()
            if "${" not in text:
                check_values(key, [plain(text)])


def _why_refused(override: Override) -> str:
    """Reason why an override is none of this project's, whatever the config; empty without one."""
    key = override.key_or_group
    if override.is_delete() or override.package is not None:
        return "give key=value; keys are neither removed nor moved."
    if re.split(r"[./]", key)[0] == "hydra":
        return "Hydra's launchers, sweepers and folders are not used; docs/decisions.md says what does the same."
    if key in ONE and override.is_sweep_override():
        return "one value for all runs. Give the command again for another."
    if key == "steps" and override.value() == []:
        choices = ", ".join(MEASUREMENTS)
        return f"nothing to measure. Choices: {choices}; experiment=recorded needs none."
    return ""


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
    line = override.input_line
    sweep = override.value()
    if not override.is_discrete_sweep():
        raise ConfigurationError(
            f"{line}: an interval cannot be enumerated; give choice(…), range(…), glob(…) or a list."
        )
    if getattr(sweep, "shuffle", False):
        raise ConfigurationError(
            f"{line}: shuffle has no end of orders. Runs have one of the key seed."
        )
    is_endless = isinstance(sweep, RangeSweep) and not (
        sweep.step and abs((sweep.stop - sweep.start) / sweep.step) <= MOST  # type: ignore[operator]
    )
    values = []
    if not is_endless:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST + 1))
    if is_endless or len(values) > MOST:
        raise ConfigurationError(f"{shortened(line)}: more than {MOST:,} values. Give fewer.")
    if not values:
        raise ConfigurationError(f"{line}: matches nothing.")
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
            says = "give its kind. hardware=… plans for another machine's: docs/clusters.md."
            raise ConfigurationError(
                f"{where}device={choice}: {says} Choices: {', '.join(options)}."
            )
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
                f"exclude={shortened(rule)}: give axes and, as `because`, the reason."
            )
    if {} in checked.first:
        raise ConfigurationError("first={}: give axes, such as {model: gpt2}.")
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
            raise ConfigurationError(f"{place}{key}: no key. Keys are words.")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"{place}{key}={value}: give a finite number.")
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
            raise ConfigurationError(f"{key}={content}: give a value, not true or false.")


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
            return ConfigurationError(f"{key}: missing. Give {key}=VALUE.")
        case "model_type" | "dict_type" | "model_attributes_type":
            keys = ", ".join(_siblings(model, [*where, ""])) or f"{key}.NAME"
            return ConfigurationError(f"{key}={given}: give one of its keys: {keys}.")
    says = _advice(first["type"], key, given, model, where)
    if not says:
        says = first["msg"].removeprefix("Value error, ")
        says = says.replace("Input should", "must").replace(" should ", " must ")
    if isinstance(first["input"], Mapping):  # of which is wrong how its values go together
        return ConfigurationError(f"{key}: {says}.")
    return ConfigurationError(f"{key}={given}: {says}.")


def _advice(fault: str, key: str, given: str, model: type[BaseModel], where: Sequence[str]) -> str:
    """Says what to give instead of a value of another type or form; empty where pydantic's own message
    says it."""
    match fault:
        case "list_type" if key == "exclude":
            return "give a list of rules in the experiment's file"
        case "list_type":
            return f"give a list: {key}=[{given}]"
        case "string_type":
            return f'give a text, in quotes where it could be a number: {where[-1]}: "123_456"'
        case "string_pattern_mismatch":  # a reader of regular expressions is not presumed
            field = find_field(model, where)[1]
            meaning = (field and field.description) or "letters, digits, . _ and -"
            return f"give {meaning.rstrip('.')}"
    return ""


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
            raise ConfigurationError(
                f"{step}: {', '.join(read)} give {count:,} runs, more than {MOST:,}. Sweep less."
            )
