"""Recomputes the code digests in a recording from the commit that measured it.

    python validation/restamp.py HARDWARE COMMIT [--proven PART …]

Digests are of normalised statements, so formatting does not change them. If a later change is
proven to measure the same (by its tests), `--proven` uses the current digests of the parts that it
touched. recording.json then names the commit and the proven parts.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from mfulab.core.files import read_json, write_json
from mfulab.core.json_text import parse_json
from mfulab.lab.planning import foundations
from mfulab.lab.tables.recording import folder_of
from mfulab.lab.tables.records import ABOUT

PLANNING = Path(foundations.__file__).parent
CARRIED = ("foundations.py", "sources.py")  # current code that makes the digests
PROGRAM = """
import json, sys
from mfulab.lab.planning.foundations import foundations
print(json.dumps({name: foundations(name, sys.argv[2]) for name in json.loads(sys.argv[1])}))
"""


def at(commit: str, names: list[str], hardware: str) -> dict[str, dict[str, str]]:
    """Digests of the code that measurements depend on, by measurement and part, as of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = f"{folder}/src.tar"
        subprocess.run(["git", "archive", f"--output={archive}", commit, "src"], check=True)  # noqa: S607
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        planning = Path(folder) / PLANNING.relative_to(Path.cwd())
        for name in CARRIED:
            (planning / name).write_text(
                (PLANNING / name).read_text(encoding="utf-8"), encoding="utf-8"
            )
        environment = os.environ | {"PYTHONPATH": f"{folder}/src"}
        command = [sys.executable, "-c", PROGRAM, json.dumps(names), hardware]
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return parse_json(done.stdout)  # type: ignore[no-any-return]


def main(arguments: list[str]) -> None:
    """Rewrites recording.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hardware")
    parser.add_argument("commit")
    parser.add_argument("--proven", nargs="*", default=[], choices=foundations.PARTS_OF_CODE)
    options = parser.parse_args(arguments)
    path = folder_of(Path("results"), options.hardware) / ABOUT
    recording = read_json(path)
    names = sorted(recording["code"])
    code = at(options.commit, names, options.hardware)
    for name in names:
        today = foundations.foundations(name, options.hardware) if options.proven else {}
        proven = {part: today[part] for part in options.proven if part in today}
        code[name] = dict(sorted({**code[name], **proven}.items()))
    stamped = {"commit": options.commit, "proven": options.proven}
    write_json(path, {**recording, "code": code, "stamped": stamped}, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
