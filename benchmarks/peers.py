"""CPU time that a configuration costs beyond its measurement, beside plain Hydra and
optimum-benchmark; and that of Snakemake when nothing is to be done, beside a plain workflow.

    python benchmarks/peers.py [--sizes 20 120]                    a configuration; minutes
    python benchmarks/peers.py --optimum /path/to/python           also optimum-benchmark, installed there
    python benchmarks/peers.py --nothing [--files 5000]            nothing to be done; many minutes
    python benchmarks/peers.py --nothing --plain                   the same, plain Snakemake alone

A configuration's cost is the difference of two sweeps, divided by the configurations that one has
more. Counted are all processes of a command, by a cgroup, which only root may make. The least of
`--times` runs counts.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import trivial
from machines import CGROUPS

HYDRA_APP = """
import hydra

@hydra.main(version_base=None)
def main(config):
    pass

main()
"""
# One forward pass of a small model from a local folder; nothing is downloaded.
BERT = """
from transformers import BertConfig, BertForMaskedLM
config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=128, vocab_size=1000)
BertForMaskedLM(config).save_pretrained("bert")
"""
OPTIMUM = """
defaults: [benchmark, scenario: inference, launcher: process, backend: pytorch, _self_]
name: peers
launcher: {start_method: spawn}
backend: {model: MODEL, processor: MODEL, device: cpu, library: transformers, no_weights: false,
          task: fill-mask}
scenario: {iterations: 1, duration: 0, warmup_runs: 0, input_shapes: {batch_size: 1,
           sequence_length: 8}, latency: true, memory: false, energy: false}
hydra: {job: {chdir: false}}
"""
OPTIMUM_SIZES = (2, 8)  # seconds a configuration
# Files of one rule, made of as many others. `alike` also has what this project's rules have.
PLAIN = """
rule all:
    input: expand("made/{i}/row.csv", i=range(FILES))

rule make:
    input: "given/{i}.json"
    output: "made/{i}/row.csv"
    shell: "cp {input} {output}"
"""
ALIKE = """
import atexit, gc
gc.set_threshold(1_000_000, 10, 10)
atexit.register(gc.freeze)

rule all:
    input: expand("made/{i}/row.csv", i=range(FILES))

for number in range(20):
    rule:
        name: f"other_{number}"
        output: f"other_{number}/{{i}}"
        shell: "touch {output}"

rule make:
    input:
        config="given/{i}.json",
        code="code",
    output: row="made/{i}/row.csv"
    log: "made/{i}/log"
    params: step="count_flops"
    conda: "environment.yaml"
    shell: "cp {input.config} {output}"
"""


def cpu_s(folder: Path, command: Sequence[str], **environment: str) -> float:
    """CPU seconds of a command in `folder` and of all processes that it starts, until the last has
    ended. Raises CalledProcessError if it fails, and OSError without the right to make a cgroup."""
    is_version_1 = (CGROUPS / "cpuacct").is_dir()
    group = CGROUPS / ("cpuacct" if is_version_1 else "") / f"mfulab-peers-{os.getpid()}"
    group.mkdir()
    variables = {**os.environ, "PYTHONPATH": str(trivial.ROOT / "src"), **environment}
    enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    try:
        with (folder / "output").open("wb") as output:
            process = subprocess.run(
                [*enter, *command], cwd=folder, env=variables, stdout=output, stderr=output
            )
        while (group / "cgroup.procs").read_text():
            time.sleep(0.1)
        if is_version_1:
            used_s = int((group / "cpuacct.usage").read_text()) / 1e9
        else:
            used_s = int((group / "cpu.stat").read_text().split()[1]) / 1e6  # usage_usec
    finally:
        group.rmdir()
    if process.returncode:
        print((folder / "output").read_text()[-3000:], file=sys.stderr)
        process.check_returncode()
    return used_s


def snakemake(count: int) -> float:
    """Cost of a sweep by the workflow, whose FLOP counts count nothing."""
    with trivial.copy() as folder:
        words = ["-m", "snakemake", "rows", "--cores", "1", "--config", *trivial.counts(count)]
        return cpu_s(folder, [sys.executable, *words], MFULAB_LOCKS=str(folder))


def run(count: int) -> float:
    """Cost of the same sweep by `mfulab run -m`."""
    with trivial.copy() as folder:
        words = [f"batch_size=range(1,{count + 1})", "model=linear_1024", "precision=fp32"]
        command = [sys.executable, "-m", "mfulab", "run", "count_flops", "-m", *words]
        return cpu_s(folder, command, MFULAB_LOCKS=str(folder))


def plain_hydra(count: int) -> float:
    """Cost of a multirun of Hydra whose function is empty."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "app.py").write_text(HYDRA_APP)
        return cpu_s(folder, [sys.executable, "app.py", "-m", f"+size=range(0,{count})"])


def optimum(python: str, count: int) -> float:
    """Cost of a multirun of optimum-benchmark, by the Python that it is installed for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpu_s(folder, [python, "-c", BERT], HF_HUB_OFFLINE="1")
        (folder / "peers.yaml").write_text(OPTIMUM.replace("MODEL", str(folder / "bert")))
        command = [str(Path(python).with_name("optimum-benchmark")), "-m", "--config-dir", name]
        command += ["--config-name", "peers"]
        sizes = f"scenario.input_shapes.batch_size=range(1,{count + 1})"
        return cpu_s(folder, [*command, sizes], HF_HUB_OFFLINE="1", PYTHONPATH="")


def a_configuration(sweep: Callable[[int], float], sizes: Sequence[int], times: int) -> float:
    """CPU seconds of a configuration: the difference of two sweeps, each the least of `times`."""
    few, many = (min(sweep(count) for _ in range(times)) for count in sizes)
    return (many - few) / (sizes[1] - sizes[0])


def configurations(options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Commands and CPU seconds of a configuration."""
    sweeps = {
        "`snakemake rows --cores 1`": snakemake,
        "`mfulab run count_flops -m`": run,
        "`python app.py -m` of Hydra, empty": plain_hydra,
    }
    for name, sweep in sweeps.items():
        yield name, a_configuration(sweep, options.sizes, options.times)
    if options.optimum:
        cost = a_configuration(lambda count: optimum(options.optimum, count), OPTIMUM_SIZES, 1)
        yield "`optimum-benchmark -m`", cost


def nothing_here(files: int, times: int) -> float:
    """CPU seconds of this workflow's command once all of `files` runs have their rows."""
    with trivial.copy() as folder:
        sweep = trivial.counts(files)
        words = ["-m", "snakemake", "rows", "--cores", "2", "--config", *sweep]
        cpu_s(folder, [sys.executable, *words], MFULAB_LOCKS=str(folder))
        return least_of_nothing(folder, [sys.executable, *words], times)


def nothing_plain(text: str, files: int, times: int) -> float:
    """CPU seconds of a workflow whose files are all there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "Snakefile").write_text(f"FILES = {files}\n{text}")
        (folder / "code").touch()
        (folder / "environment.yaml").write_text("dependencies: []\n")
        (folder / "given").mkdir()
        for number in range(files):
            (folder / f"given/{number}.json").touch()
        for number in range(files):
            (folder / f"made/{number}").mkdir(parents=True)
            (folder / f"made/{number}/row.csv").touch()
        return least_of_nothing(folder, [sys.executable, "-m", "snakemake", "--cores", "2"], times)


def least_of_nothing(folder: Path, command: Sequence[str], times: int) -> float:
    """The least CPU seconds of a command that finds nothing to do."""
    seconds = []
    for _ in range(times):
        seconds.append(cpu_s(folder, command, MFULAB_LOCKS=str(folder)))
        assert "Nothing to be done" in (folder / "output").read_text()
    return min(seconds)


def nothing_to_do(options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Commands and their CPU seconds when nothing is to be done."""
    files, times = options.files, options.times
    if not options.plain:
        yield f"`snakemake rows`, {files:,} runs", nothing_here(files, times)
    yield f"plain Snakemake, {files:,} files", nothing_plain(PLAIN, files, times)
    yield "the same, alike in rules and garbage collection", nothing_plain(ALIKE, files, times)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row for each command, with its ratio to the first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs=2, type=int, default=(20, 120), help="configurations")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--optimum", metavar="PYTHON", help="that has optimum-benchmark")
    parser.add_argument("--nothing", action="store_true", help="nothing to be done")
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--plain", action="store_true", help="plain Snakemake alone")
    options = parser.parse_args(arguments)
    print(trivial.machine())
    print("| command | CPU s | ÷ the first |")
    print("| --- | ---: | ---: |")
    rows = nothing_to_do(options) if options.nothing else configurations(options)
    first_s = 0.0
    try:
        for name, seconds in rows:
            first_s = first_s or seconds
            print(f"| {name} | {seconds:.3g} | {seconds / first_s:.2g} |", flush=True)
    except OSError as error:
        sys.exit(f"needs the right to make a cgroup: {error}")


if __name__ == "__main__":
    main()
