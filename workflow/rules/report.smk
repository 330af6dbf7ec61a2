# These take seconds and need no device, so that they run where the workflow was started, also with a cluster.
localrules:
    tables,
    figure,
    figures,
    picture,
    slides,
    seminar,
    page,
    report,
    rows,
    first_page,
    refine,


# A checkpoint, as only the joined rows show which figures have data.
checkpoint tables:
    input:
        planned=lab.inputs.manifests,
        others=lab.other_manifests,
        recorded=sorted(glob(f"{REFERENCE}/*/*.csv")),
        rows=lab.inputs.rows,
        refined=refined,
        sources=lab.drawn.module_sources("mfulab.lab.tables.build"),
    output:
        expand("results/tables/{table}.csv", table=TABLES),
        figures="results/tables/figures.txt",
    log:
        "results/tables/log",
    conda:
        "../envs/tools.yaml"
    params:
        planned=lab.inputs.planned_manifests,
        others=lab.other_manifests,
        unplanned=lab.unplanned,
        recorded=lab.recorded,
        reference=lambda wildcards: lab.reference,
    message:
        "Joining rows into tables"
    shell:
        "(mfulab tables --manifest {params.planned:q} --also {params.others:q} {params.unplanned:q}"
        " --reference {params.reference:q} {params.recorded:q} --out results/tables"
        " && mfulab figures --list {output.figures:q} --formats svg) > {log:q} 2>&1"


# Runs after the measurements for the page's first sentence. It reserves the device, so that nothing is measured
# meanwhile.
rule first_page:
    input:
        lab.inputs.headline_rows,
    output:
        lab.inputs.first_page,
    log:
        "results/tables/first_page.log",
    priority: 200
    conda:
        "../envs/tools.yaml"
    resources:
        cpu_measurement=1,
        gpu=lab.gpu,
    params:
        planned_manifests=lab.inputs.planned_manifests,
        reference=lambda wildcards: lab.reference,
        language=lab.language,
    message:
        "Writing a first page: reports/report.html"
    shell:
        f"({PARTIAL_PAGE} && echo {{output}} > {{output:q}}) > {{log:q}} 2>&1"


# Spends the rest of a budget on further processes of the runs with the widest intervals.
rule refine:
    input:
        lab.inputs.rows,
    output:
        "results/plan/{digest}.refined",
    log:
        "results/plan/{digest}.refined.log",
    conda:
        "../envs/tools.yaml"
    resources:
        cpu_measurement=1,
        gpu=lab.gpu,
    params:
        hardware=lab.plans[0].hardware if lab.plans else "",
        config=lab.words,
    message:
        "Measuring again what is known least"
    shell:
        "(mfulab refine {params.hardware} --in-budget --widest 6%"
        " --sweep {params.config:q}"
        " && echo {output} > {output:q}) > {log:q} 2>&1"


rule figure:
    input:
        tables=expand("results/tables/{table}.csv", table=TABLES),
        sources=lab.drawn.module_sources("mfulab.lab.report.figures", "mfulab.lab.report.figures.*"),
    output:
        report(
            "reports/figures/{figure}.svg",
            caption="../report/figure.rst",
            category=lab.drawn.category,
            labels=lab.drawn.labels,
        ),
    log:
        "results/tables/{figure}.log",
    conda:
        "../envs/tools.yaml"
    params:
        language=lab.language,
        reading=lab.drawn.reading,
    message:
        "Drawing {wildcards.figure}"
    shell:
        "(rm -f reports/figures/{wildcards.figure}.p?? &&"
        " mfulab figures --only {wildcards.figure} --formats svg --language {params.language})"
        " > {log:q} 2>&1"


# Formats that the page does not need, drawn on request. The SVG is their input, as it is drawn again when they are
# outdated.
rule picture:
    input:
        "reports/figures/{figure}.svg",
    output:
        "reports/figures/{figure}.png",
        "reports/figures/{figure}.pdf",
    log:
        "results/tables/{figure}_picture.log",
    conda:
        "../envs/tools.yaml"
    params:
        language=lab.language,
    message:
        "Drawing {wildcards.figure} as PNG and PDF"
    shell:
        "mfulab figures --only {wildcards.figure} --formats png pdf --language {params.language}"
        " > {log:q} 2>&1"


# Numbers that need no measurement: computed once, and again when the code that counts has changed.
rule seminar:
    input:
        sources=lab.drawn.module_sources("mfulab.lab.tables.seminar"),
    output:
        "results/tables/seminar.csv",
    log:
        "results/tables/seminar.log",
    conda:
        "../envs/tools.yaml"
    message:
        "Computing the seminar's numbers"
    shell:
        "mfulab seminar --out {output:q} > {log:q} 2>&1"


rule page:
    input:
        tables=expand("results/tables/{table}.csv", table=TABLES),
        seminar="results/tables/seminar.csv",
        comparison=glob("results/tables/comparison.csv"),  # from `mfulab compare --out`
        figures=figures_with_data,
        sources=lab.drawn.module_sources(
            "mfulab.lab.report.page.document", "mfulab.lab.report.figures.*"
        ),
    output:
        page="reports/report.html",
        whole="results/tables/whole_page",
    log:
        "results/tables/page.log",
    conda:
        "../envs/tools.yaml"
    params:
        language=lab.language,
    message:
        "Writing {output.page}"
    shell:
        "(mfulab page --figures reports/figures --out {output.page:q} --language {params.language}"
        " && touch {output.whole:q}) > {log:q} 2>&1"


# A lecture's figures in the order of its topics. The output is a folder, so that figures without data are removed.
rule slides:
    input:
        tables=expand("results/tables/{table}.csv", table=TABLES),
        topics=TOPICS,
        sources=lab.drawn.module_sources("mfulab.lab.report.slides", "mfulab.lab.report.figures.*"),
    output:
        directory("reports/slides/{text}_{language}"),
    log:
        "results/tables/slides_{text}_{language}.log",
    conda:
        "../envs/tools.yaml"
    message:
        "Drawing the slides {output}"
    shell:
        "mfulab slides {wildcards.text} --topics {input.topics:q} --language {wildcards.language}"
        " --out {output:q} > {log:q} 2>&1"


rule figures:
    input:
        lab.slides or figures_with_data,


rule rows:  # only measures, for a machine whose results are collected elsewhere
    input:
        lab.inputs.rows,
