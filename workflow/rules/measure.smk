# One rule per measurement. Its input is a run's config, its output the run's row, even if the run fails.
for measurement in MEASUREMENTS.values():

    rule:
        name:
            measurement.step
        input:
            unpack(inspected(lab.inputs.of_run(measurement))),
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
