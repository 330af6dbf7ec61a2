"""What the page shows is a function of the command, whatever came before it."""

import ast
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.workflow_copy import ROOT

from mfulab.lab.planning.workflow import PAGE

PARTIAL, WHOLE_PAGE = Path("results/tables/partial"), Path("results/tables/whole_page")
TABLES = PARTIAL.parent
RULES = (ROOT / "workflow/rules/common.smk").read_text(encoding="utf-8")
PARTIAL_PAGE = ast.literal_eval(
    re.search(r"^PARTIAL_PAGE = (\(.*?^\))", RULES, re.MULTILINE | re.DOTALL)[1]
)
# `mfulab STEP … --out PLACE`: writes what it was asked for, whole as the real one
# does, or is killed.
WARM = """
mfulab() {
    [ $((left--)) -gt 0 ] || kill -9 $$
    while [ "$1" != --out ]; do words="$words $1"; shift; done
    case "$words " in
        *" page "*) mkdir -p reports; cat "$from/table" > half; mv half "$2";;
        *) mkdir -p "$2"; echo "$who" > "$2/table";;
    esac
    words=
}
"""
KILLED_AFTER = st.sampled_from([0, 1, 2, 2, 2])  # of two commands


class Commands(RuleBasedStateMachine):
    """Commands for several experiments in one folder; Snakemake's part is to make what is missing,
    or was another's."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / TABLES).mkdir(parents=True)
        self.asked = ""  # whose tables and page Snakemake has on record

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def run(self, command: str, who: str, commands: int, source: Path) -> bool:
        words = f"left={commands} who='{who}' from='{source}'; {WARM} {command}"
        return subprocess.run(["bash", "-c", words], cwd=self.folder, check=False).returncode == 0

    @rule(who=st.sampled_from("AB"), commands=KILLED_AFTER)
    def ends_early(self, who: str, commands: int) -> None:
        """A first page, or that of a sweep which was interrupted or failed."""
        params = SimpleNamespace(
            planned_manifests=[f"results/cpu/plan/{who}.json"],
            reference=["results/reference"],
            language="en",
        )
        command = PARTIAL_PAGE.replace(":q}", "[0]}").format(params=params)
        self.run(command, f"part of {who}", commands, PARTIAL)

    @rule(who=st.sampled_from("AB"), commands=KILLED_AFTER)
    def comes_to_its_end(self, who: str, commands: int) -> None:
        """As Snakemake: outputs are removed before they are made, and nothing is done where all of
        them are there."""
        if self.asked != who:
            self.asked = ""
            (self.folder / TABLES / "table").unlink(missing_ok=True)
            if not self.run(f"warm tables --out {TABLES}", who, commands, TABLES):
                return
        if (
            self.asked != who
            or not (self.folder / WHOLE_PAGE).exists()
            or not (self.folder / PAGE).exists()
        ):
            for output in (PAGE, WHOLE_PAGE):
                (self.folder / output).unlink(missing_ok=True)
            if not self.run(f"warm x page --out {PAGE}", who, commands - 1, TABLES):
                return
            (self.folder / WHOLE_PAGE).touch()
        self.asked = who
        assert (self.folder / PAGE).read_text() == f"{who}\n"

    @invariant()
    def tables_on_record_are_whole(self) -> None:
        if self.asked:
            assert (self.folder / TABLES / "table").read_text() == f"{self.asked}\n"
            if (self.folder / WHOLE_PAGE).exists():
                assert (self.folder / PAGE).read_text() == f"{self.asked}\n"


Commands.TestCase.settings = settings(max_examples=10, stateful_step_count=8)
TestCommands = Commands.TestCase
