"""Plan of an experiment on disk: its runs, and the runs that each one's row is joined with. Paths
outside results/ are rejected."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from mfulab.core.errors import shortened
from mfulab.core.files import UnreadableError, read_json
from mfulab.core.groups import SLUG
from mfulab.measurements.registry import MEASUREMENTS, machine

Slug = Annotated[str, Field(pattern=f"^{SLUG}$"), AfterValidator(machine)]
Text = Annotated[str, Field(pattern=r"^[^\x00/]+$", max_length=255)]


class PlannedRun(BaseModel):
    """One run of an experiment, and the folders of the runs that its row is joined with."""

    step: Literal[tuple(MEASUREMENTS)]  # type: ignore[valid-type]
    run: Text
    folder: str
    config_digest: str | None = None
    flops_folder: str | None = None
    ceilings: dict[Literal["compute", "memory"], str] = {}


class Excluded(BaseModel):
    """A run that the experiment leaves out, and why."""

    step: Text
    run: Text
    because: str = ""


class Manifest(BaseModel):
    """Every run of one experiment on one device. Unknown keys, as of later versions, are
    ignored."""

    experiment: Text
    hardware: Slug
    runs: list[PlannedRun]
    overrides: list[str] = []
    excluded: list[Excluded] = []

    @model_validator(mode="after")
    def _stays_in_the_results(self) -> "Manifest":
        """Checks that every folder lies directly in its measurement's folder below results/."""
        for run in self.runs:
            named = [
                (run.step, run.folder),
                *(("ceilings", folder) for folder in run.ceilings.values()),
            ]
            for step, folder in [
                *named,
                *([("count_flops", run.flops_folder)] if run.flops_folder else ()),
            ]:
                place = (
                    f"results/{self.hardware}/{step}"
                    if MEASUREMENTS[step].on_device
                    else f"results/{step}"
                )
                parent, _, name = folder.rpartition("/")
                if parent != place or name in ("", ".", "..") or "\0" in name:
                    raise ValueError(f"folder={shortened(folder)!r} is not one of {place}/")
        return self


def read(path: Path) -> Manifest:
    """Reads a plan. Raises FileNotFoundError if there is no file, and UnreadableError, which names
    the file, if its content is not a valid plan."""
    try:
        return Manifest.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        named = f"{where}: " if where else ""
        raise UnreadableError(path, f"{named}{first['msg']}") from error
