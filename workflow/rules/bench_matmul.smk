rule bench_matmul:
    input:
        config=lab.config("bench_matmul"),
        sources=lab.sources("bench_matmul"),
    output:
        row="results/{hardware}/bench_matmul/{run}/row.csv",
    log:
        "results/{hardware}/bench_matmul/{run}/log",
    priority: 0
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=lab.gpus,
        cpu_measurement=lab.cpus,
        runtime="20m",
    message:
        "Multiplying {wildcards.run}"
    shell:
        "warm scripts/bench_matmul.py --config {input.config:q} > {log:q} 2>&1"
