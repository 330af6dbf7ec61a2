from glob import glob
from pathlib import Path

from mfulab.lab.planning import snakemake_workarounds
from mfulab.lab.planning.workflow import Workflow
from mfulab.lab.runtime import lifetime
from mfulab.measurements.registry import MEASUREMENTS, TABLES

snakemake_workarounds.look_for_garbage_rarely()
snakemake_workarounds.keep_commas(workflow)
lab = Workflow(config, is_main=workflow.is_main_process)
snakemake_workarounds.begin_before_executing(workflow, lab)

# `warm SCRIPT …` in a rule's shell command: in the warm worker, or directly where there is none.
shell.prefix(lab.warm)

# A page of the rows that there are. Snakemake, which does not see it, finds results/tables/whole_page missing, which
# stands for its own page, and makes that anew.
PARTIAL_PAGE = (
    "rm -f results/tables/whole_page"
    " && warm scripts/command.py tables --partial --manifest {params.planned_manifests:q}"
    " --reference results/reference --out results/tables/partial"
    " && warm scripts/command.py page --tables results/tables/partial --out reports/report.html"
    " --language {params.language}"
)


wildcard_constraints:
    hardware="[a-z0-9][a-z0-9-]*",
    run="[^/]+",


onstart:
    snakemake_workarounds.end_in_order(workflow.scheduler, workflow.local_exec)
    snakemake_workarounds.keep_no_output_older(workflow.dag)
    lab.say_estimate(workflow.dag.needrun_jobs(), workflow.scheduler.global_resources.get("gpu", 1))
    lifetime.start(workflow.local_exec, lab.work(workflow.dag.needrun_jobs()))


onsuccess:
    shell("trap '' INT TERM; warm scripts/command.py summary")
    lifetime.stop()


onerror:
    if lab.shows_what_there_is(workflow.dag.needrun_jobs()):
        shell(
            f"mkdir -p results/tables; ({PARTIAL_PAGE}) >> results/tables/first_page.log 2>&1 || true", params=lab
        )
    lifetime.stop()


def figures_with_data(wildcards):
    listed = Path(checkpoints.tables.get().output.figures).read_text(encoding="utf-8")
    return expand("reports/figures/{figure}.svg", figure=listed.split())


# Further processes start on this machine: a cluster's jobs have no part in it.
def refined(wildcards):
    return lab.refined(wildcards) if workflow.local_exec else []
