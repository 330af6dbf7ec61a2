"""Keys of an experiment with their defaults, and the choices of groups, each a file, a line of a
table, a kernel or a device."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, Field, create_model
from pydantic.fields import FieldInfo

import mfulab
from mfulab.core.errors import ConfigurationError
from mfulab.core.groups import SLUG, Closed
from mfulab.core.language import LANGUAGES
from mfulab.core.parts import Content
from mfulab.core.replicates import MOST_REPLICATES
from mfulab.core.said import Said, of_source
from mfulab.core.yaml_text import load_yaml
from mfulab.device.vendors import kinds
from mfulab.measurements.published import RECORDINGS
from mfulab.measurements.registry import MEASUREMENTS, machine

KERNELS = Path(mfulab.__file__).parent / "kernels"
# Mappings with keys of the user's own, which Hydra must be told to add.
OPEN = ("model.arguments", "model.inputs", "model.input_vocabularies", "device.peak_tflop_s")
# Fields of configs that planning sets and users cannot.
SET_BY_PLANNING = {"name", "target", "digest", "installed", "replicate", "path", "trace_peaks"}


def recording(name: str) -> str:
    """Validates the name of a recorded machine. Raises ValueError if there is no such recording."""
    names = sorted(path.parent.name for path in RECORDINGS.glob("*/recording.json"))
    if name not in names:
        raise ValueError(f"unknown. Choices: {', '.join(names) or f'none in {RECORDINGS}/'}")
    return name


class Report(Closed):
    """Options of the report: no part of a run, so a change measures nothing."""

    language: Literal[*LANGUAGES] = Field("en", description="Language of page and figures.")  # type: ignore[valid-type]
    rows: Literal["planned", "all"] = Field(
        "planned",
        description="Rows on the page: of the requested experiments and recorded machines, or all measured here.",
    )
    text: Literal["lab", "kernels", "optimise", "hardware", "accounting"] | None = Field(
        None,
        description="Text of the seminar whose figures `snakemake figures` draws, as slides in each language.",
    )
    recorded: Annotated[str, AfterValidator(recording)] | None = Field(
        None,
        description="Recording that is shown alone, without measuring: a folder of results/reference/.",
    )


class Asked(Closed):
    """Options of planning itself."""

    steps: list[str] = Field(
        ["profile_step", "bench_matmul"],
        description="Measurements of the experiment; those they need are added.",
    )
    replicates: Annotated[int, Field(ge=1, le=MOST_REPLICATES)] | None = Field(
        None,
        description="Processes that measure each run, apart in time; empty: 3 on a CPU, 2 on a GPU.",
    )
    ceiling_replicates: Annotated[int, Field(ge=1, le=MOST_REPLICATES)] | None = Field(
        None, description="Processes that measure each ceiling; empty: 4 on a CPU, 2 on a GPU."
    )
    short_processes: bool = Field(
        False,
        description="Empty times of the section timing are short, and a GPU's ceilings searched for quickly.",
    )
    budget_min: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Minutes of wall time of a sweep; runs that do not fit are not measured; empty: no end.",
    )
    on_gpu: Annotated[str, Field(pattern=r"^\w+$")] | None = Field(
        None, description="The experiment that stands in for this one where the device is a GPU."
    )
    first: list[Content] = Field(
        [],
        description="Combinations measured first, each rule before the next: `{model: gpt2, batch_size: [8, 16]}`. With"
        " a budget, a page is written after the first.",
    )
    hardware: Annotated[str, Field(pattern=f"^{SLUG}$"), AfterValidator(machine)] | None = Field(
        None,
        description="Slug of the device if planning runs on another machine: its folder in results/ (letters a to z,"
        " digits and hyphens); empty: this one.",
    )
    trace: str | None = Field(
        None,
        description="Traces for read_trace: a file of torch.profiler, a folder of them or a glob.",
    )
    report: Report = Report()
    exclude: list[Content] = Field(
        [],
        description="Combinations left out, each with its reason: `{model: gpt2, batch_size: [64, 128], because: …}`.",
    )


_FIELDS = dict[str, Any]()
for _measurement in MEASUREMENTS.values():
    for _name, _field in _measurement.config.model_fields.items():
        if _name not in ("ceiling", "search", "trace"):
            _FIELDS[_name] = (_field.annotation, _field)

# All keys of a composed experiment, even those that none of its measurements reads.
Experiment = create_model("Experiment", __base__=Asked, **_FIELDS)


def group_model(annotation: Any) -> type[BaseModel] | None:
    """The model of a key that holds further keys, even if it is optional; None for a plain
    value."""
    kinds = (annotation, *get_args(annotation))
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def find_field(
    model: type[BaseModel], where: Sequence[str]
) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The model that holds the last of the nested keys `where`, and its field there; None for each
    that does not exist."""
    *parents, last = where
    holder: type[BaseModel] | None = model
    for part in parents:
        field = None
        if holder:
            field = find_field(holder, [part])[1]
        holder = None
        if field:
            holder = group_model(field.annotation)
    if holder:
        for name, found in holder.model_fields.items():
            if last in (name, found.alias):
                return holder, found
    return holder, None


def defaults(model: type[BaseModel] = Experiment) -> Content:
    """Keys with defaults, nested as in the config. Keys without one get their value from a group's
    choice."""
    keys: Content = {}
    for name, field in model.model_fields.items():
        inner = group_model(field.annotation)
        if inner is not None:
            keys[name] = defaults(inner)
        elif not field.is_required() and name not in SET_BY_PLANNING:
            keys[name] = field.get_default()
    return keys


def groups(folder: Path) -> set[str]:
    """Names of the groups in the config tree `folder`."""
    paths = (path for path in folder.iterdir() if path.is_dir() or path.suffix == ".yaml")
    return {path.stem for path in paths} - {"config"}


def choices(folder: Path, group: str) -> list[str]:
    """Sorted names of a group's choices."""
    files = {path.stem for path in (folder / group).glob("*.yaml")}
    return sorted(files.union(derived(folder, group)))


def derived(folder: Path, group: str) -> dict[str, Content]:
    """Contents of a group's choices that have no file of their own."""
    table = folder / f"{group}.yaml"
    contents = dict[str, Content]()
    if group == "kernel":
        contents = _kernels()
    elif group == "device":
        contents = {kind: {"name": kind, "type": kind} for kind in ("auto", "cpu", *kinds())}
    if table.exists():
        contents = contents | _lines(table, table.stat().st_mtime_ns)
    found = {}
    for name, content in contents.items():
        if not (folder / group / f"{name}.yaml").exists():
            found[name] = content
    return found


def content(folder: Path, group: str, name: str) -> Content:
    """Content of a choice, from its line, module or file; Hydra's interpolations are not
    resolved."""
    return derived(folder, group).get(name) or dict(load_yaml(folder / group / f"{name}.yaml"))


@cache
def _lines(table: Path, changed_ns: int) -> dict[str, Content]:
    lines = load_yaml(table) or {}
    if not isinstance(lines, Mapping) or not all(
        isinstance(content, Mapping) for content in lines.values()
    ):
        raise ConfigurationError(of_source(str(table), Said("give_line_a_choice")))
    return {name: {"name": name, **content} for name, content in lines.items()}


@cache
def _kernels() -> dict[str, Content]:
    """Choices of kernels: modules with a class of the same name that declares what it `adds`. Read
    from the text, as importing is slow."""
    kernels = {}
    for path in KERNELS.glob("[!_]*.py"):
        text = path.read_text(encoding="utf-8")
        is_kernel = re.search(r"^    .*\badds\b.* = ", text, re.MULTILINE) is not None
        for name in re.findall(r"^class (\w+)\(", text, re.MULTILINE):
            if is_kernel and name.lower() == path.stem.replace("_", ""):
                target = f"mfulab.kernels.{path.stem}.{name}"
                kernels[path.stem] = {"name": path.stem, "_target_": target}
    return kernels
