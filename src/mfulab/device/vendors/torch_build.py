"""Installed build of torch, read from its files. Importing torch takes seconds, and planning does
not need it."""

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
    """Version of torch, and the CUDA and HIP versions it was built for. Those are empty for no
    support, and None if unknown."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    by_conda: bool = False

    @property
    def is_for_cpus(self) -> bool:
        """True if the build supports neither CUDA nor HIP."""
        return self.cuda == self.hip == ""

    @property
    def release(self) -> tuple[int, ...]:
        """Major and minor version; (0, 0) if the version cannot be parsed."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return tuple(map(int, found.groups())) if found else (0, 0)

    def replaced(self, conda: str, pip: str = "", newer: bool = False) -> str:
        """Command that installs another build of the same version, or of the newest. `conda` is a
        build pattern, `pip` holds options."""
        release = self.version.partition("+")[0]
        if self.by_conda:
            chosen = f"'pytorch=*={conda}'" if newer else f"'pytorch={release}={conda}'"
            return f"conda install -c conda-forge {chosen}"
        chosen = "torch" if newer else f"torch=={release}"
        return f"pip uninstall -y torch && pip install {chosen}{pip}"


@functools.cache
def installed() -> Build | None:
    """Installed build of torch; None without torch. A conda build's version has no `+cpu`, but
    `version.py` names CUDA in every build."""
    try:
        package = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    versions: dict[str, str] = {}
    with suppress(OSError, ValueError, ImportError):
        spec = find_spec("torch")
        folder = (spec.submodule_search_locations or [""])[0] if spec else ""
        text = (Path(folder) / "version.py").read_text(encoding="utf-8")
        versions = {name: single or double for name, single, double in _VERSION.findall(text)}
    is_conda = (package.read_text("INSTALLER") or "").strip() == "conda"
    return Build(package.version, versions.get("cuda"), versions.get("hip"), is_conda)
