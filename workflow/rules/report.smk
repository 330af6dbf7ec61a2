rule tables:
    input:
        manifests=lab.manifests,
        rows=lab.rows,
        sources=lab.module_sources("mfulab.report.tables"),
    output:
        expand("results/tables/{table}.csv", table=lab.tables),
    log:
        "results/tables/log",
    conda:
        "../../environment.yml"
    message:
        "Joining rows into tables"
    params:
        manifests=lab.planned_manifests,
    shell:
        "{warm} scripts/tables.py --manifest {params.manifests:q} --results results --reference results/reference"
        " --out results/tables > {log:q} 2>&1"


rule figure:
    input:
        tables=rules.tables.output,
        sources=lab.figure_sources,
    output:
        report(
            "reports/figures/{figure}.svg",
            caption="../report/figure.rst",
            category="{figure}",
        ),
        "reports/figures/{figure}.png",
        "reports/figures/{figure}.pdf",
    log:
        "results/tables/{figure}.log",
    conda:
        "../../environment.yml"
    message:
        "Drawing {wildcards.figure}"
    shell:
        "{warm} scripts/figures.py --only {wildcards.figure} > {log:q} 2>&1"


rule page:
    input:
        tables=rules.tables.output,
        sources=lab.module_sources("mfulab.report.page"),
    output:
        "reports/report.html",
    log:
        "results/tables/page.log",
    conda:
        "../../environment.yml"
    message:
        "Writing {output}"
    shell:
        "{warm} scripts/page.py --out {output:q} > {log:q} 2>&1"


rule figures:
    input:
        expand("reports/figures/{figure}.svg", figure=lab.figures),


# A target holds the rows too: one that was lost is measured again even where the page is newer.
rule report:
    default_target: True
    input:
        "reports/report.html",
        rules.figures.input,
        lab.rows,
