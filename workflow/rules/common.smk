from glob import glob
from pathlib import Path
from types import SimpleNamespace

from mfulab.lab.planning import queues, snakemake_workarounds
from mfulab.lab.planning.load import RESULTS
from mfulab.lab.planning.workflow import Workflow
from mfulab.lab.runtime import lifetime
from mfulab.measurements.registry import MEASUREMENTS, TABLES

inspected = snakemake_workarounds.inspected
snakemake_workarounds.look_for_garbage_rarely()
snakemake_workarounds.keep_commas(workflow)
lab = Workflow(config, is_main=workflow.is_main_process, typed=workflow.config_settings.config)
snakemake_workarounds.begin_before_executing(workflow, lab)
snakemake_workarounds.leave_finished_rows(workflow, lab)

# Defines `measure STEP …` and `mfulab COMMAND …` for shell commands. They run in the warm worker, or directly if there
# is none.
shell.prefix(lab.shell_prefix)

# Recordings of the current folder, or those next to this Snakefile, which another project may use as a module.
REFERENCE = Path("results/reference")
if not REFERENCE.is_dir():
    shipped = Path(str(workflow.current_basedir)).parent.parent / REFERENCE
    REFERENCE = shipped if shipped.is_dir() else REFERENCE
lab.reference = str(REFERENCE)

# Writes a page of the rows measured so far, outside Snakemake's rules. Without results/tables/whole_page, an output of
# the rule `page`, Snakemake writes the complete page later.
PARTIAL_PAGE = (
    "rm -f results/tables/whole_page"
    " && mfulab tables --partial --manifest {params.planned_manifests:q}"
    " --reference {params.reference:q} --out results/tables/partial"
    " && mfulab page --tables results/tables/partial --out reports/report.html"
    " --language {params.language}"
)


# Relative to this file, as another project may use the workflow as a module.
TOPICS = workflow.source_path("../../docs/seminar.yaml")


wildcard_constraints:
    hardware="[a-z0-9][a-z0-9-]*",
    run="[^/]+",


# Functions instead of the directives onstart, onsuccess and onerror, which Snakemake ignores in a module.
def started(log):
    queue = snakemake_workarounds.queue_of(workflow)
    queues.note(RESULTS, queue)
    snakemake_workarounds.keep_finished_rows(lab)
    snakemake_workarounds.end_in_order(workflow.scheduler, queue)
    snakemake_workarounds.keep_no_output_older(workflow.dag)
    lab.say_estimate(workflow.dag.needrun_jobs(), workflow.scheduler.global_resources.get("gpu", 1))
    lifetime.start(workflow.local_exec, lab.work(workflow.dag.needrun_jobs()))


def succeeded(log):
    # If the page's language is the default, the summary is in that of the terminal.
    language = "" if lab.language == "en" else f" --language {lab.language}"
    queues.forget(RESULTS)
    shell(f"trap '' INT TERM; mfulab summary{language}")
    lifetime.stop()


def failed(log):
    if lab.can_write_or_say_why():
        lab.say_at_exit_how_to_go_on()
        if lab.lacks_page(workflow.dag.needrun_jobs()):
            lab.say_interrupted()
            write_partial_page()
    lifetime.stop()


def write_partial_page():
    shell(
        f"mkdir -p results/tables; ({PARTIAL_PAGE}) >> results/tables/first_page.log 2>&1 || true",
        params=SimpleNamespace(
            planned_manifests=lab.inputs.planned_manifests,
            reference=lab.reference,
            language=lab.language,
        ),
    )


snakemake_workarounds.add_handlers(workflow, started, succeeded, failed)


def figures_with_data(wildcards):
    listed = Path(checkpoints.tables.get().output.figures).read_text(encoding="utf-8")
    return expand("reports/figures/{figure}.svg", figure=listed.split())


# Only for local sweeps, as `mfulab refine` starts its processes on this machine.
def refined(wildcards):
    return lab.inputs.refined(wildcards) if workflow.local_exec else []
