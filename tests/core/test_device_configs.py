"""Every file of the groups precision, execution, workload and device is what its name says."""

import pytest
import yaml
from support.workflow_copy import ROOT

from mfulab.core.groups import DeviceConfig, ExecutionConfig, PrecisionConfig, WorkloadConfig

GROUPS = {
    "precision": PrecisionConfig,
    "execution": ExecutionConfig,
    "workload": WorkloadConfig,
    "device": DeviceConfig,
}
FILES = [(group, path) for group in GROUPS for path in sorted((ROOT / "config" / group).glob("*.yaml"))]


@pytest.mark.parametrize(("group", "path"), FILES, ids=[f"{group}/{path.stem}" for group, path in FILES])
def test_file(group, path):
    text = path.read_text()
    assert text.startswith("# "), "the first line says what it is for"
    assert GROUPS[group].model_validate(yaml.safe_load(text)).name == path.stem
