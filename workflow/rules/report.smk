rule tables:
    input:
        manifests=lab.manifests,
        rows=lab.rows,
    output:
        "results/tables/profile.csv",
    message:
        "Joining rows into tables"
    shell:
        "touch {output}"


rule page:
    input:
        "results/tables/profile.csv",
    output:
        "reports/report.html",
    message:
        "Writing {output}"
    shell:
        "cp {input} {output}"


# A target holds the rows too: one that was lost is measured again even where the page is newer.
rule report:
    default_target: True
    input:
        "reports/report.html",
        lab.rows,
