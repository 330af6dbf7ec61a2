"""Every file of the groups precision, execution, workload and device is what its name says."""

from pathlib import Path

import pytest
import yaml

from mfulab.configs import DeviceConfig, ExecutionConfig, PrecisionConfig, WorkloadConfig

ROOT = Path(__file__).parents[1] / "config"
GROUPS = {
    "precision": PrecisionConfig,
    "execution": ExecutionConfig,
    "workload": WorkloadConfig,
    "device": DeviceConfig,
}
FILES = [(group, path) for group in GROUPS for path in sorted((ROOT / group).glob("*.yaml"))]


@pytest.mark.parametrize(("group", "path"), FILES, ids=[f"{group}/{path.stem}" for group, path in FILES])
def test_file(group, path):
    text = path.read_text()
    assert text.startswith("# "), "the first line says what it is for"
    assert GROUPS[group].model_validate(yaml.safe_load(text)).name == path.stem
