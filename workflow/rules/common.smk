from mfulab.planning.workflow import Workflow
from mfulab.worker import lifetime

lab = Workflow(config)
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
