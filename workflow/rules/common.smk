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


wildcard_constraints:
    hardware="[a-z0-9][a-z0-9-]*",
    run="[^/]+",


onstart:
    snakemake_workarounds.keep_no_default_rate(workflow.scheduler)
    snakemake_workarounds.end_in_order(workflow.scheduler)
    snakemake_workarounds.keep_no_output_older(workflow.dag)
    lab.say_estimate(workflow.dag.needrun_jobs(), workflow.scheduler.global_resources.get("gpu", 1))
    lifetime.start(workflow.local_exec, lab.work(workflow.dag.needrun_jobs()))


onsuccess:
    lifetime.stop()
    shell("trap '' INT TERM; warm scripts/command.py summary")


onerror:
    shell(lab.last_page(workflow.dag.needrun_jobs()))
    lifetime.stop()


def figures_with_data(wildcards):
    return lab.figures(checkpoints.tables.get().output.figures)


# Further processes start on this machine: a cluster's jobs have no part in it.
def refined(wildcards):
    return lab.refined(wildcards) if workflow.local_exec else []
