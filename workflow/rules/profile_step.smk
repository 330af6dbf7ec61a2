rule profile_step:
    input:
        config=lab.config("profile_step"),
        sources=lab.sources("profile_step"),
    output:
        row="results/{hardware}/profile_step/{run}/row.csv",
    log:
        "results/{hardware}/profile_step/{run}/log",
    priority: 0
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=lab.gpus,
        cpu_measurement=lab.cpus,
        runtime="20m",
    message:
        "Profiling {wildcards.run}"
    shell:
        "warm scripts/profile_step.py --config {input.config:q} > {log:q} 2>&1"
