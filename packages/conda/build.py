"""Builds the conda packages of this folder: python packages/conda/build.py OUT [CHANNEL…].

Needs py-rattler-build; a package is tried after it is built, as its recipe says.
"""

import sys
from pathlib import Path

import rattler_build


def main(out: str, *channels: str) -> None:
    """Builds every recipe beside this file into the channel OUT, the peaks first."""
    for path in sorted(Path(__file__).parent.glob("*/recipe.yaml"), reverse=True):
        for variant in rattler_build.Stage0Recipe.from_file(str(path)).render():
            built = variant.run_build(output_dir=out, channels=[*channels] or ["conda-forge"])
            sys.stdout.write(f"{' '.join(map(str, built.packages))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
