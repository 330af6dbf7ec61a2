rule environment:
    input:
        config=lab.config("environment"),
        sources=lab.sources("environment"),
    output:
        row="results/{hardware}/environment/{run}/row.csv",
    log:
        "results/{hardware}/environment/{run}/log",
    priority: 30
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=lab.gpus,
        cpu_measurement=lab.cpus,
        runtime="5m",
    message:
        "What this machine is: {wildcards.hardware}"
    shell:
        "warm scripts/environment.py --config {input.config:q} > {log:q} 2>&1"
