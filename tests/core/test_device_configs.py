"""Every choice of the groups precision, execution, workload and device is what its name says."""

import re

import pytest
from support.workflow_copy import ROOT

from mfulab.core.groups import DeviceConfig, ExecutionConfig, PrecisionConfig, WorkloadConfig
from mfulab.lab.planning import keys

GROUPS = {
    "precision": PrecisionConfig,
    "execution": ExecutionConfig,
    "workload": WorkloadConfig,
    "device": DeviceConfig,
}
LINES = [
    (group, *line) for group in GROUPS for line in keys.derived(ROOT / "config", group).items()
]


@pytest.mark.parametrize(
    ("group", "name", "content"), LINES, ids=[f"{group}/{name}" for group, name, _ in LINES]
)
def test_line(group, name, content):
    text = (ROOT / f"config/{group}.yaml").read_text()
    assert re.search(rf"^{name}: .* # \S", text, re.MULTILINE), "a remark says what it is for"
    assert GROUPS[group].model_validate(content).name == name
