"""Stamps a recording anew with digests of the code that measured it, as that commit holds it.

    python validation/restamp.py HARDWARE COMMIT [--proven PART …]

Digests are of normal forms of statements, so that formatting alone changes none. Where a later
rewriting is proven to measure the same (its tests say so), `--proven` takes today's digests of the
parts that it touched. recording.json then names the commit and what was proven.
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
CARRIED = ("foundations.py", "sources.py", "statements.py")  # today's, which make the digests
PROGRAM = """
import json, sys
from mfulab.lab.planning.foundations import foundations
print(json.dumps({name: foundations(name, sys.argv[2]) for name in json.loads(sys.argv[1])}))
"""


def at(commit: str, names: list[str], hardware: str) -> dict[str, dict[str, str]]:
    """Digests of the parts that measurements rest on, as a commit's code has them."""
    with tempfile.TemporaryDirectory() as folder:
        archive = f"{folder}/src.tar"
        subprocess.run(["git", "archive", f"--output={archive}", commit, "src"], check=True)  # noqa: S607
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        place = Path(folder) / PLANNING.relative_to(Path.cwd())
        for name in CARRIED:
            (place / name).write_text(
                (PLANNING / name).read_text(encoding="utf-8"), encoding="utf-8"
            )
        environment = os.environ | {"PYTHONPATH": f"{folder}/src"}
        command = [sys.executable, "-c", PROGRAM, json.dumps(names), hardware]
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return parse_json(done.stdout)  # type: ignore[no-any-return]


def main(words: list[str]) -> None:
    """Writes recording.json anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hardware")
    parser.add_argument("commit")
    parser.add_argument("--proven", nargs="*", default=[], choices=foundations.PARTS)
    given = parser.parse_args(words)
    path = folder_of(Path("results"), given.hardware) / ABOUT
    about = read_json(path)
    names = sorted(about["code"])
    code = at(given.commit, names, given.hardware)
    for name in names:
        today = foundations.foundations(name, given.hardware) if given.proven else {}
        proven = {part: today[part] for part in given.proven if part in today}
        code[name] = dict(sorted({**code[name], **proven}.items()))
    stamped = {"commit": given.commit, "proven": given.proven}
    write_json(path, {**about, "code": code, "stamped": stamped}, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
