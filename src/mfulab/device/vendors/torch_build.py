"""The build of torch that is installed, read from its files: importing it takes seconds, and planning does without."""

import functools
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

_VERSION = re.compile(r"^(cuda|hip)\b[^=\n]*= *(?:None|'([^']*)'|\"([^\"]*)\")", re.MULTILINE)


@dataclass(frozen=True)
class Build:
    """Version of torch, and the CUDA and HIP that it is built for: empty without, None where it does not say."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    by_conda: bool = False

    @property
    def is_for_cpus(self) -> bool:
        """True if it knows no GPU of NVIDIA's or AMD's."""
        return self.cuda == self.hip == ""

    def replaced(self, conda: str, pip: str = "") -> str:
        """A command that installs another build of the same version: what `conda`, or the options of `pip`, choose."""
        release = self.version.partition("+")[0]
        if self.by_conda:
            return f"conda install -c conda-forge 'pytorch={release}={conda}'"
        return f"pip uninstall -y torch && pip install torch=={release}{pip}"


@functools.cache
def installed() -> Build | None:
    """The build; None where torch is not installed. A conda package bears no `+cpu`, but all name their CUDA."""
    try:
        package = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    told: dict[str, str] = {}
    with suppress(OSError, ValueError, ImportError):
        spec = find_spec("torch")
        folder = (spec.submodule_search_locations or [""])[0] if spec else ""
        text = (Path(folder) / "version.py").read_text(encoding="utf-8")
        told = {name: single or double for name, single, double in _VERSION.findall(text)}
    is_conda = (package.read_text("INSTALLER") or "").strip() == "conda"
    return Build(package.version, told.get("cuda"), told.get("hip"), is_conda)
