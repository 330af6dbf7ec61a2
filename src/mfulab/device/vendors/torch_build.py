"""The build of torch that is installed, read from its files: importing it takes seconds, and
planning does without."""

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
    """Version of torch, and the CUDA and HIP that it is built for: empty without, None where it
    does not say."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    by_conda: bool = False

    @property
    def is_for_cpus(self) -> bool:
        """True if it knows no GPU of NVIDIA's or AMD's."""
        return self.cuda == self.hip == ""

    @property
    def release(self) -> tuple[int, ...]:
        """Major and minor version; (0, 0) where it has none."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return tuple(map(int, found.groups())) if found else (0, 0)

    def replaced(self, conda: str, pip: str = "", newer: bool = False) -> str:
        """A command that installs another build, which `conda` or the options of `pip` choose: of
        the same version, or the newest."""
        release = self.version.partition("+")[0]
        if self.by_conda:
            chosen = f"'pytorch=*={conda}'" if newer else f"'pytorch={release}={conda}'"
            return f"conda install -c conda-forge {chosen}"
        chosen = "torch" if newer else f"torch=={release}"
        return f"pip uninstall -y torch && pip install {chosen}{pip}"


@functools.cache
def installed() -> Build | None:
    """The build; None where torch is not installed. A conda package bears no `+cpu`, but all name
    their CUDA."""
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
