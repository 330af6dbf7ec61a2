"""The `mfulab` command: its subcommands, their arguments and messages. Their code is imported when they run."""

from collections.abc import Sequence
from typing import Any

import click

import mfulab


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(mfulab.__version__, prog_name="mfulab")
@click.pass_context
def cli(context: click.Context) -> None:
    """Model FLOPs utilization beside device utilization."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command()
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--pid", type=int, help="On a CPU: watch this process instead of the whole machine.")
@click.option("--interval", type=float, default=1.0, show_default=True, help="Seconds between refreshes.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after as many refreshes.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON each time instead of the ladder.")
@click.option(
    "--prometheus",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve 127.0.0.1:PORT/metrics; 0: any port.",
)
def watch(
    device: str, pid: int | None, interval: float, count: int | None, as_json: bool, prometheus: int | None
) -> int:
    """Show the utilization ladder of a running device, and MFU of processes that mfulab.measure measures."""
    from mfulab.cli import watch

    return watch.run(device, pid=pid, interval_s=interval, count=count, as_json=as_json, prometheus=prometheus)


@cli.command()
@click.argument("device", required=False)
@click.argument("precision", required=False)
def peak(device: str | None, precision: str | None) -> int:
    """Print dense peaks of DEVICE (a name or PCI id; without one: the device at hand), in PRECISION or in all."""
    from mfulab.cli import peak

    return peak.show(device, precision)


@cli.command()
@click.argument("model")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE …]")
@click.option("--batch-size", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--sequence-length", type=click.IntRange(min=1), help="Tokens a sample; by default the model's own.")
@click.option("--depth", type=click.IntRange(min=0), default=3, show_default=True, help="Levels of layers shown.")
def flops(model: str, words: tuple[str, ...], batch_size: int, sequence_length: int | None, depth: int) -> int:
    """Count MODEL's FLOPs by layer, forward and backward, without a device.

    MODEL is a name of config/model/, a YAML file, a config.json of transformers (or its folder), or a dotted path to a
    function that returns a torch.nn.Module, followed by its input: my_model.build input_shape=[3,64,64].
    """
    from mfulab.cli import flops

    return flops.show(model, words, batch_size, sequence_length, depth)


@cli.command(no_args_is_help=True)
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", help="json: an object a line.")
@click.option("--html", metavar="PAGE", help="Also write the page of these traces.")
@click.option("--peak", "peaks", multiple=True, metavar="FORMAT=TFLOP/s", help="A dense peak: --peak bf16=1307.")
@click.option("--steps", type=int, help="How many steps a trace without ProfilerStep spans holds.")
@click.option("--model", help="The model of a trace without shapes: a name in config/model/.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Samples a step, with --model.")
@click.option("--sequence-length", type=click.IntRange(min=1), help="Tokens a sample, with --model.")
@click.option("--precision", help="The format of the model's matmuls, with --model: bf16, tf32, …")
@click.option("--language", type=click.Choice(["en", "ko"]), default="en")
def trace(files: tuple[str, ...], **options: Any) -> int:
    """Read traces of torch.profiler: MFU beside utilization, and where the milliseconds go.

    FILE is *.json or *.json.gz, a folder of them, or a glob; ranks of one job are joined.
    """
    from mfulab.cli import trace

    return trace.run(files, **options)


@cli.command(no_args_is_help=True)
@click.argument("words", nargs=-1, metavar="KEY=VALUE …")
def explain(words: tuple[str, ...]) -> int:
    """Give a speed as MFU by every convention of the field, and find the one behind a reported number.

    mfulab explain model=llama_3_1_8b sequence_length=8192 device="NVIDIA H100 80GB HBM3" precision=bf16
    tokens_per_s=5762 reported=46.4

    tokens_per_s and samples_per_s are of all devices together; time_s is that of a step. batch_size is always the
    samples of a step on each device, and goes with time_s or with no speed.
    Without a speed: the time that the device's roofline allows, and the memory that a step needs.
    """
    from mfulab.cli import explain

    return explain.show(words)


@cli.command()
@click.argument("step", required=False)
@click.option("--row", is_flag=True, help="The schema of the step's row, and its table's columns.")
@click.option("--check", is_flag=True, help="Show what is out of date in config/ and the README; status 1 if anything.")
@click.option("--fix", is_flag=True, help="Write it: config.yaml's defaults, KEYS.md, schema.json, the experiments.")
def schema(step: str | None, row: bool, check: bool, fix: bool) -> int:
    """Print the JSON Schema of STEP's config or row; without STEP the table of every key."""
    from mfulab.cli import schema

    return schema.check(fix) if check or fix else schema.show(step, row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit status, 2 after a mistake in the arguments."""
    try:
        return cli.main(arguments, prog_name="mfulab", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ModuleNotFoundError as error:
        from mfulab.core.errors import lacks

        if not (sentence := lacks("This", error.name or "")):
            raise
        click.echo(f"mfulab: {sentence}", err=True)
        return 2
    except click.Abort:
        return 130
