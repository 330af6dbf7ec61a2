# Measures MFU versus utilization: config/ → plan → one process per run → tables → figures → one page.
#   snakemake --cores 1 report
#   snakemake --cores 1 report --config experiment=kernels precision=bf16 size=1024,2048
from snakemake.utils import min_version

min_version("9.20")


report: "workflow/report/workflow.rst"


# Counts of devices hold for one machine. Jobs on a cluster do not share them, as it assigns devices itself.
resource_scopes:
    gpu="local",
    cpu_measurement="local",


include: "workflow/rules/common.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/report.smk"


# In this file, because Snakemake takes no default target from an included one. The rows are inputs too, so that a
# lost one is measured again even if the page is newer.
rule report:
    default_target: True
    input:
        rules.page.output,
        lab.inputs.rows,
        lab.inputs.early,
