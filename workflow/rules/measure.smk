# One rule a measurement: a run's config in, its row out, whatever happens.
for each in MEASUREMENTS.values():

    rule:
        name:
            each.step
        input:
            config=inspected(lab.inputs.planned(f"results/{each.folder}/config.json")),
            sources=inspected(lab.inputs.sources(each.step)),
            previous=inspected(lab.inputs.previous(f"results/{each.folder}/row.csv")),
        output:
            row=f"results/{each.folder}/row.csv",
        log:
            f"results/{each.folder}/log",
        priority: lab.inputs.priority(each)
        conda:
            "../envs/tools.yaml"
        threads: 1
        resources:
            **lab.inputs.resources(each),
        params:
            step=each.step,
        message:
            each.message
        shell:
            "measure {params.step} --config {input.config:q} > {log:q} 2>&1"
