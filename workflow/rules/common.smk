from mfulab.planning.cluster import keep_commas
from mfulab.planning.workflow import Workflow
from mfulab.worker import lifetime

lab = Workflow(config, is_main=workflow.is_main_process)
keep_commas(workflow)
warm = lab.warm
python = lab.python


wildcard_constraints:
    hardware="[a-z0-9][a-z0-9-]*",
    run="[^/]+",


onstart:
    lifetime.start(workflow.local_exec)


onsuccess:
    lifetime.stop()
    shell("{python} scripts/summary.py")


onerror:
    lifetime.stop()
