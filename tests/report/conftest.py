"""What the tests of the report share: tables of two invented machines, joined once in each process of pytest."""

import pytest
from support import report_rows

from mfulab.report import frames
from mfulab.tables import build


@pytest.fixture(scope="session")
def invented(tmp_path_factory) -> frames.Tables:
    """Every table of the two machines with all of their models. Tests change copies."""
    root = tmp_path_factory.mktemp("invented")
    manifests = [str(report_rows.lay_out(root, each)) for each in (report_rows.CPU, report_rows.GPU)]
    build.main(["--root", str(root), "--out", str(root / "tables"), "--manifest", *manifests])
    return frames.read(root / "tables")[0]
