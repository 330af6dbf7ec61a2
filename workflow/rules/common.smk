import gc

from mfulab.planning import mends
from mfulab.planning.workflow import Workflow
from mfulab.worker import lifetime

# The jobs of a workflow live as long as it does: to look for garbage among thousands of them, again and again, would take
# a sixth of the time in which nothing is found to be done.
gc.set_threshold(100_000)

lab = Workflow(config, is_main=workflow.is_main_process)
mends.keep_commas(workflow)

# `warm SCRIPT …` in a rule's shell command: in the warm worker, or directly where there is none.
shell.prefix(lab.warm)


wildcard_constraints:
    hardware="[a-z0-9][a-z0-9-]*",
    run="[^/]+",


onstart:
    mends.keep_no_default_rate(workflow.scheduler)
    lifetime.start(workflow.local_exec, measures=lab.measures)


onsuccess:
    lifetime.stop()
    shell("warm scripts/summary.py")


onerror:
    lifetime.stop()


def figures_with_data(wildcards):
    return lab.figures(checkpoints.tables.get().output.figures)
