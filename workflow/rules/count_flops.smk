rule count_flops:
    input:
        config=lab.config("count_flops"),
        sources=lab.sources("count_flops"),
    output:
        row="results/count_flops/{run}/row.csv",
    log:
        "results/count_flops/{run}/log",
    priority: 10
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        runtime="10m",
    message:
        "Counting FLOPs of {wildcards.run}"
    shell:
        "warm scripts/count_flops.py --config {input.config:q} > {log:q} 2>&1"
