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
            self._require_below_results(run.step, run.folder)
            for folder in run.ceilings.values():
                self._require_below_results("ceilings", folder)
            if run.flops_folder:
                self._require_below_results("count_flops", run.flops_folder)
        return self

    def _require_below_results(self, step: str, folder: str) -> None:
        expected = f"results/{step}"
        if MEASUREMENTS[step].on_device:
            expected = f"results/{self.hardware}/{step}"
        parent, _, name = folder.rpartition("/")
        if parent != expected or name in ("", ".", "..") or "\0" in name:
            raise ValueError(f"folder={shortened(folder)!r} is not one of {expected}/")


def read(path: Path) -> Manifest:
    """Reads a plan. Raises FileNotFoundError if there is no file, and UnreadableError, which names
    the file, if its content is not a valid plan."""
    try:
        return Manifest.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"]
        if key:
            message = f"{key}: {message}"
        raise UnreadableError(path, message) from error
