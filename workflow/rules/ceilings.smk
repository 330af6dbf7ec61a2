rule ceilings:
    input:
        config=lab.config("ceilings"),
        sources=lab.sources("ceilings"),
    output:
        row="results/{hardware}/ceilings/{run}/row.csv",
    log:
        "results/{hardware}/ceilings/{run}/log",
    priority: 20
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=lab.gpus,
        cpu_measurement=lab.cpus,
        runtime="10m",
    message:
        "What {wildcards.hardware} can do at best: {wildcards.run}"
    shell:
        "warm scripts/ceilings.py --config {input.config:q} > {log:q} 2>&1"
