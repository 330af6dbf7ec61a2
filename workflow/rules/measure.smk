# One rule per measurement. Its input is a run's config, its output the run's row, even if the run fails.
for measurement in MEASUREMENTS.values():

    rule:
        name:
            measurement.step
        input:
            config=inspected(lab.inputs.planned(f"results/{measurement.folder}/config.json")),
            sources=inspected(lab.inputs.sources(measurement.step)),
            previous=inspected(lab.inputs.previous(f"results/{measurement.folder}/row.csv")),
        output:
            row=f"results/{measurement.folder}/row.csv",
        log:
            f"results/{measurement.folder}/log",
        priority: lab.inputs.priority(measurement)
        conda:
            "../envs/tools.yaml"
        threads: 1
        resources:
            **lab.inputs.resources(measurement),
        params:
            step=measurement.step,
        message:
            measurement.message
        shell:
            "measure {params.step} --config {input.config:q} > {log:q} 2>&1"
