# MFU versus utilization, measured: config/ → plan → one measurement a run → tables → figures → one page.
#   snakemake --cores 1 report
#   snakemake --cores 1 report --config experiment=kernels precision=bf16 size=1024,2048
from snakemake.utils import min_version

min_version("9.20")


report: "workflow/report/workflow.rst"


# Devices belong to one machine; a cluster hands out its own, so jobs there do not share these counts.
resource_scopes:
    gpu="local",
    cpu_measurement="local",


include: "workflow/rules/common.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/report.smk"


# Here, because Snakemake takes no default target from an included file. It holds the rows too: one that was lost is
# measured again even where the page is newer.
rule report:
    default_target: True
    input:
        rules.page.output,
        lab.inputs.rows,
        lab.inputs.early,
