rule number_formats:
    input:
        config=lab.config("number_formats"),
        sources=lab.sources("number_formats"),
    output:
        row="results/number_formats/{run}/row.csv",
    log:
        "results/number_formats/{run}/log",
    priority: 10
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        runtime="10m",
    message:
        "Rounding in {wildcards.run}"
    shell:
        "warm scripts/number_formats.py --config {input.config:q} > {log:q} 2>&1"
