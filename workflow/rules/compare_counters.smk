rule compare_counters:
    input:
        config=lab.config("compare_counters"),
        sources=lab.sources("compare_counters"),
    output:
        row="results/compare_counters/{run}/row.csv",
    log:
        "results/compare_counters/{run}/log",
    priority: 10
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        runtime="10m",
    message:
        "Counting {wildcards.run}"
    shell:
        "warm scripts/compare_counters.py --config {input.config:q} > {log:q} 2>&1"
