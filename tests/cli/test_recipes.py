"""The recipes of docs/checks.md as they stand."""

import re
import shlex

import pytest
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.cli.main import main

PAGE = (ROOT / "docs/checks.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.strip().splitlines()
]


@pytest.mark.parametrize(
    "typed", few(sorted(COMMANDS, key=lambda typed: " fits " in typed), len(COMMANDS) - 1)
)
def test_a_command_runs(typed, capsys):
    assert main(shlex.split(typed)[1:]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_the_code_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(code, "docs/checks.md", "exec"), names)
    names["test_the_new_way_is_not_slower"]()


def test_every_status_of_a_gate_is_told():
    from mfulab.cli.gate import STATUS

    rows = dict(re.findall(r"^\| (\d) \| (.*) \|$", PAGE, re.MULTILINE))
    assert [
        verdict for verdict, status in STATUS.items() if f"*{verdict}*" not in rows[str(status)]
    ] == []
