"""Runs unmodified public training scripts under `mfulab measure` and compares the FLOPs of a step
with those by hand.

    python validation/public_scripts.py --list                    repositories and commits to clone
    python validation/public_scripts.py CLONES [--only mnist vae]

CLONES holds a folder OWNER+NAME of each repository at its commit. Nothing is downloaded: images and
tasks are noise from `stand_ins/`, texts are generated. A script that would continue is interrupted
once its row is written. `--table` prints the table of docs/loops.md.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mfulab.core.json_text import parse_json

HERE = Path(__file__).parent
STEPS = 12
LIMIT_S = 900
# Scripts from before torch 2.6 load arrays by `torch.load`. Here they only load generated files.
OLDER = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "MPLBACKEND": "Agg"}

COMMITS = {
    "pytorch/examples": "77f55b912142e11fcfdf5b530231fb9c52f181e8",
    "karpathy/nanoGPT": "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
    "karpathy/llm.c": "f1e2ace651495b74ae22d45d1723443fd00ecd3a",
    "karpathy/minGPT": "37baab71b9abea1b76ab957409a1cc2fbfba8a26",
    "karpathy/makemore": "988aa59e4d8fefa526d06f3b453ad116258398d4",
    "eriklindernoren/PyTorch-GAN": "36d3c77e5ff20ebe0aeefd322326a134a279b93e",
    "yunjey/pytorch-tutorial": "0500d3df5a2a8080ccfccbc00aca0eacc21818db",
    "jcjohnson/pytorch-examples": "0003fcdc606a79951e53bf8f46f8574fa4739f23",
    "locuslab/TCN": "2f8c2b817050206397458dfd1f5a25ce8a32fe65",
    "seungeunrho/minimalRL": "c8efed8481e3cd40e9739cfde220a55522555b57",
}


@dataclass(frozen=True)
class Public:
    """Public script: repository, working folder, command, and FLOPs of a step by hand."""

    name: str
    repository: str
    folder: str
    command: str
    by_hand: Callable[[], int] | None  # None: it calls no module, which mfulab reports
    options: str = ""
    step_of: str = ""  # optimiser of its training, if that begins long after the start

    @property
    def flops(self) -> int | None:
        """FLOPs of a step by hand; None if nothing can be measured."""
        return self.by_hand() if self.by_hand else None


def forward(rows: int, *widths: int) -> int:
    """FLOPs of a sequence of linear layers."""
    return sum(2 * rows * a * b for a, b in pairwise(widths))


def trained(rows: int, *widths: int) -> int:
    """FLOPs of linear layers with gradients. The first layer's input needs none."""
    return 3 * forward(rows, *widths) - forward(rows, *widths[:2])


def conv(rows: int, side: int, kernel: int, channels: int, filters: int) -> int:
    """FLOPs of a convolution with `side` × `side` output pixels."""
    return forward(rows * side**2, kernel**2 * channels, filters)


def recurrent(
    rows: int, steps: int, inputs: int, hidden: int, gates: int, is_first: bool = False
) -> int:
    """FLOPs of a recurrent layer with gradients. The initial state needs none, nor does the first
    layer's input."""
    forward_flops = forward(rows * steps, inputs + hidden, gates * hidden)
    of_state = forward(rows * (steps - 1), hidden, gates * hidden)
    of_inputs = 0 if is_first else forward(rows * steps, inputs, gates * hidden)
    return 2 * forward_flops + of_state + of_inputs


def attention(rows: int, length: int, width: int) -> int:
    """FLOPs of the scores and of their product with the values, over all pairs of positions."""
    return 2 * 2 * rows * length**2 * width


def gpt(rows: int, length: int, width: int, layers: int, words: int) -> int:
    """FLOPs of a GPT with gradients. Inputs of the layers are embeddings, which need gradients."""
    tokens = rows * length
    square = forward(tokens, width, width)
    layer = 12 * square + attention(rows, length, width)
    return 3 * (layers * layer + forward(tokens, width, words))


def mnist() -> int:
    """FLOPs of a step of this script."""
    first = conv(64, 26, 3, 1, 32)
    return 3 * (first + conv(64, 24, 3, 32, 64) + forward(64, 9216, 128, 10)) - first


def mnist_rnn() -> int:
    """FLOPs of a step of this script."""
    return recurrent(64, 28, 28, 64, 4, is_first=True) + 3 * forward(64, 64, 32, 10)


def autoencoder(rows: int) -> int:
    """FLOPs of the encoder to means and deviations, and of the decoder."""
    first = forward(rows, 784, 400)
    inner = 2 * forward(rows, 400, 20) + forward(rows, 20, 400, 784)
    return 3 * (first + inner) - first


def dcgan() -> int:
    """FLOPs of the critic's two losses, and of the generator's loss through the critic."""
    seen = forward(64, 100, 16 * 64)
    generator = seen + conv(64, 4, 4, 64, 32) + conv(64, 8, 4, 32, 16)
    generator += conv(64, 16, 4, 16, 8) + conv(64, 32, 4, 8, 3)
    first = conv(64, 32, 4, 3, 8)
    critic = first + conv(64, 16, 4, 8, 16) + conv(64, 8, 4, 16, 32)
    critic += conv(64, 4, 4, 32, 64) + conv(64, 1, 4, 64, 1)
    return 9 * critic - 2 * first + 3 * generator - seen


def words(gates: int) -> int:
    """FLOPs of two recurrent layers over 35 × 20 words from a vocabulary of 41."""
    return 2 * recurrent(20, 35, 200, 200, gates) + 3 * forward(700, 200, 41)


def words_attended() -> int:
    """FLOPs of two encoder layers over 35 × 20 words from a vocabulary of 41."""
    layer = 6 * forward(700, 200, 200) + attention(20, 35, 200)
    return 3 * (2 * layer + forward(700, 200, 41))


def regression() -> int:
    """FLOPs of a linear layer, and of the product that computes its targets."""
    return trained(32, 4, 1) + forward(32, 4, 1)


def forward_forward() -> int:
    """FLOPs of a layer on positive and on negative samples."""
    return 2 * trained(500, 784, 500)


def reinforce() -> int:
    """FLOPs of an episode of 20 actions, with one sample each."""
    return 20 * trained(1, 4, 128, 2)


def actor_critic() -> int:
    """FLOPs of an episode of a policy with a second head for values."""
    return 20 * (trained(1, 4, 128, 2) + 3 * forward(1, 128, 1))


def hogwild() -> int:
    """FLOPs of a step of this script."""
    first = conv(64, 24, 5, 1, 10)
    return 3 * (first + conv(64, 8, 5, 10, 20) + forward(64, 320, 50, 10)) - first


def time_sequence() -> int:
    """FLOPs of 20 evaluations of L-BFGS, and of a forecast over 1,000 steps of 3 sequences."""
    trained_cells = recurrent(97, 59, 1, 51, 4, is_first=True) + recurrent(97, 59, 51, 51, 4)
    trained_cells += 3 * forward(97 * 59, 51, 1)
    forecast = forward(3 * 1059, 52, 204) + forward(3 * 1059, 102, 204) + forward(3 * 1059, 51, 1)
    return 20 * trained_cells + forecast


def mingpt_adder() -> int:
    """FLOPs of a step of this script."""
    return gpt(64, 6, 48, 3, 10)


def nanogpt() -> int:
    """FLOPs of a step of this script."""
    return gpt(4, 32, 64, 2, 50304)


def llm_c() -> int:
    """FLOPs of a step of this script: GPT-2 with 12 layers, on 2 × 32 tokens."""
    return gpt(2, 32, 768, 12, 50257)


def makemore_transformer() -> int:
    """FLOPs of a step of this script."""
    return gpt(32, 16, 64, 4, 27)


def makemore_mlp() -> int:
    """FLOPs of a step of this script."""
    return 3 * forward(512, 16 * 64, 64, 27)


def makemore_rnn(cells: int) -> int:
    """FLOPs of cells whose inputs are a letter's embedding of 64 and a state of 64."""
    return 3 * (cells * forward(512, 128, 64) + forward(512, 64, 27))


def makemore_bow() -> int:
    """FLOPs of a step of this script."""
    means = forward(32 * 16, 16, 64)  # with constant weights
    return 2 * means + 3 * forward(512, 64, 64, 64, 27)


GENERATOR = (100, 128, 256, 512, 1024, 784)
CRITIC = (784, 512, 256, 1)


def gan() -> int:
    """FLOPs of the generator's loss through the critic, and of the critic on real and generated
    images."""
    generator = trained(64, *GENERATOR)
    return generator + 3 * forward(64, *CRITIC) + 2 * trained(64, *CRITIC)


def wgan() -> int:
    """FLOPs of five steps of the critic and one of the generator."""
    critic_step = forward(64, *GENERATOR) + 2 * trained(64, *CRITIC)
    return 5 * critic_step + trained(64, *GENERATOR) + 3 * forward(64, *CRITIC)


def cgan() -> int:
    """FLOPs of a GAN with trained embeddings of labels, so that the input of every layer needs
    gradients."""
    generator = forward(64, 110, *GENERATOR[1:])
    return 3 * generator + 9 * forward(64, 794, 512, 512, 512, 1)


def aae() -> int:
    """FLOPs of the encoder and decoder, and of the critic of codes."""
    encoder = trained(64, 784, 512, 512) + 2 * 3 * forward(64, 512, 10)
    decoder = 3 * forward(64, 10, 512, 512, 784)
    critic = (10, 512, 256, 1)
    return encoder + decoder + 3 * forward(64, *critic) + 2 * trained(64, *critic)


def cnn() -> int:
    """FLOPs of a step of this script."""
    first = conv(100, 28, 5, 1, 16)
    return 3 * (first + conv(100, 14, 5, 16, 32) + forward(100, 1568, 10)) - first


def birnn() -> int:
    """FLOPs of two bidirectional layers."""
    first = 2 * recurrent(100, 28, 28, 128, 4, is_first=True)
    return first + 2 * recurrent(100, 28, 256, 128, 4) + 3 * forward(100, 256, 10)


def tutorial_gan() -> int:
    """FLOPs of a GAN whose critic's loss is also propagated back through the generator."""
    generator, critic = (64, 256, 256, 784), (784, 256, 256, 1)
    both = trained(100, *generator) + 3 * forward(100, *critic)
    return trained(100, *critic) + 2 * both


def tcn_adding() -> int:
    """FLOPs of three levels. Each convolution also computes padding that is cut off."""
    total = 0
    for level, channels in enumerate((2, 30, 30)):
        places = 32 * (50 + 6 * 2**level)
        total += 3 * (forward(places, 7 * channels, 30) + forward(places, 7 * 30, 30))
    total += 3 * forward(32 * 50, 2, 30) + 3 * forward(32, 30, 1)
    return total - forward(32 * 56, 14, 30) - forward(32 * 50, 2, 30)


def rl_dqn() -> int:
    """FLOPs of a step in which the gradient is also propagated through the target network."""
    return 2 * trained(32, 4, 128, 128, 2)


EXAMPLES, MAKEMORE = "pytorch/examples", "karpathy/makemore"
GANS, TUTORIAL = "eriklindernoren/PyTorch-GAN", "yunjey/pytorch-tutorial"
OLD, RL = "jcjohnson/pytorch-examples", "seungeunrho/minimalRL"
GAN_FOLDER = "implementations"
BASICS = "tutorials/01-basics"
MIDDLE = "tutorials/02-intermediate"
ADVANCED = "tutorials/03-advanced"
REINFORCEMENT = "reinforcement_learning"
MORE = "makemore.py --max-steps 60 -n 0 --type"
LANGUAGE = "main.py --data DATA/words --epochs 1"
SMALL_GPT = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2"
    " --eval_interval=100 --max_iters=60 --block_size=32 --batch_size=4 --n_layer=2 --n_head=2"
    " --n_embd=64 --dropout=0.0"
)
LLM_C = (
    "train_gpt2.py --model d12 --write_tensors 0 --device cpu --input_bin DATA/tokens.bin"
    " --batch_size 2 --sequence_length 32 --total_batch_size 64 --num_iterations 20"
)

SCRIPTS = (
    Public("mnist", EXAMPLES, "mnist", "main.py --epochs 1", mnist),
    Public("mnist_rnn", EXAMPLES, "mnist_rnn", "main.py --epochs 1", mnist_rnn),
    Public("vae", EXAMPLES, "vae", "main.py --epochs 1", lambda: autoencoder(128)),
    Public(
        "dcgan",
        EXAMPLES,
        "dcgan",
        "main.py --dataset fake --niter 1 --ngf 8 --ndf 8 --workers 0",
        dcgan,
    ),
    Public("lm_lstm", EXAMPLES, "word_language_model", LANGUAGE, lambda: words(4)),
    Public("lm_gru", EXAMPLES, "word_language_model", f"{LANGUAGE} --model GRU", lambda: words(3)),
    Public(
        "lm_transformer",
        EXAMPLES,
        "word_language_model",
        f"{LANGUAGE} --model Transformer --use-optimizer",
        words_attended,
    ),
    Public("regression", EXAMPLES, "regression", "main.py", regression),
    Public(
        "forward_forward",
        EXAMPLES,
        "mnist_forward_forward",
        "main.py --epochs 30 --train_size 500 --test_size 100",
        forward_forward,
    ),
    Public("reinforce", EXAMPLES, REINFORCEMENT, "reinforce.py", reinforce),
    Public("actor_critic", EXAMPLES, REINFORCEMENT, "actor_critic.py", actor_critic),
    Public(
        "hogwild", EXAMPLES, "mnist_hogwild", "main.py --epochs 1", hogwild, "--children", "SGD"
    ),
    Public(
        "time_sequence", EXAMPLES, "time_sequence_prediction", "train.py --steps 20", time_sequence
    ),
    Public("nanogpt", "karpathy/nanoGPT", ".", SMALL_GPT, nanogpt),
    Public("llm_c", "karpathy/llm.c", ".", LLM_C, llm_c),
    Public(
        "mingpt_adder",
        "karpathy/minGPT",
        "projects/adder",
        "adder.py --trainer.max_iters=100 --trainer.num_workers=0",
        mingpt_adder,
    ),
    Public("makemore_transformer", MAKEMORE, ".", f"{MORE} transformer", makemore_transformer),
    Public("makemore_mlp", MAKEMORE, ".", f"{MORE} mlp", makemore_mlp),
    Public("makemore_rnn", MAKEMORE, ".", f"{MORE} rnn", lambda: makemore_rnn(1)),
    Public("makemore_gru", MAKEMORE, ".", f"{MORE} gru", lambda: makemore_rnn(3)),
    Public("makemore_bow", MAKEMORE, ".", f"{MORE} bow", makemore_bow),
    Public("gan", GANS, f"{GAN_FOLDER}/gan", "gan.py --n_epochs 1", gan),
    Public("wgan", GANS, f"{GAN_FOLDER}/wgan", "wgan.py --n_epochs 2", wgan),
    Public("cgan", GANS, f"{GAN_FOLDER}/cgan", "cgan.py --n_epochs 1 --img_size 28", cgan),
    Public("aae", GANS, f"{GAN_FOLDER}/aae", "aae.py --n_epochs 1 --img_size 28", aae),
    Public(
        "linear_regression",
        TUTORIAL,
        f"{BASICS}/linear_regression",
        "main.py",
        lambda: trained(15, 1, 1),
    ),
    Public(
        "logistic_regression",
        TUTORIAL,
        f"{BASICS}/logistic_regression",
        "main.py",
        lambda: trained(100, 784, 10),
    ),
    Public(
        "feedforward",
        TUTORIAL,
        f"{BASICS}/feedforward_neural_network",
        "main.py",
        lambda: trained(100, 784, 500, 10),
    ),
    Public("cnn", TUTORIAL, f"{MIDDLE}/convolutional_neural_network", "main.py", cnn),
    Public("birnn", TUTORIAL, f"{MIDDLE}/bidirectional_recurrent_neural_network", "main.py", birnn),
    Public(
        "tutorial_gan",
        TUTORIAL,
        f"{ADVANCED}/generative_adversarial_network",
        "main.py",
        tutorial_gan,
    ),
    Public(
        "tutorial_vae",
        TUTORIAL,
        f"{ADVANCED}/variational_autoencoder",
        "main.py",
        lambda: autoencoder(128),
    ),
    Public("two_layers_nn", OLD, "nn", "two_layer_net_nn.py", lambda: trained(64, 1000, 100, 10)),
    Public(
        "two_layers_optim", OLD, "nn", "two_layer_net_optim.py", lambda: trained(64, 1000, 100, 10)
    ),
    Public("two_layers_autograd", OLD, "autograd", "two_layer_net_autograd.py", None),
    Public(
        "tcn_adding",
        "locuslab/TCN",
        "TCN/adding_problem",
        "add_test.py --cuda --epochs 1 --seq_len 50 --levels 3",
        tcn_adding,
    ),
    Public("rl_reinforce", RL, ".", "REINFORCE.py", reinforce),
    Public("rl_dqn", RL, ".", "dqn.py", rl_dqn, step_of="Adam"),
)


def write_data(folder: Path) -> None:
    """Writes texts and numbers that some scripts read."""
    import numpy as np

    words = folder / "words"
    words.mkdir(parents=True)
    line = " ".join(f"word{number % 100}" for number in range(40))
    for name, lines in (("train", 600), ("valid", 40), ("test", 40)):
        (words / f"{name}.txt").write_text(f"{line}\n" * lines)
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, 5000  # llm.c's magic number, version, tokens
    tokens = np.arange(5000, dtype=np.uint16)
    (folder / "tokens.bin").write_bytes(header.tobytes() + tokens.tobytes())


def prepare(script: Public, folder: Path) -> None:
    """Creates the file that a script's own preparation would download or generate."""
    import numpy as np
    import torch

    if script.name == "nanogpt":
        data = folder / "data" / "shakespeare_char"
        data.mkdir(parents=True, exist_ok=True)
        for name in ("train.bin", "val.bin"):
            np.arange(5000, dtype=np.uint16).__mod__(65).tofile(data / name)
    if script.name == "time_sequence":
        phases = np.arange(100)[:, None] / 20 + np.arange(60)[None] / 20
        torch.save(np.sin(phases), folder / "traindata.pt")


def measured(script: Public, clones: Path, data: Path) -> dict[str, object]:
    """Runs a script under mfulab. Returns its row, with the exit status and the end of its error
    output."""
    folder = clones / script.repository.replace("/", "+") / script.folder
    prepare(script, folder)
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "row.json"
        options = ["--ceiling", "0", "--steps", str(STEPS), "--json", str(out)]
        command = script.command.replace("DATA", str(data)).split()
        path = [str(HERE / "stand_ins"), str(clones / script.repository.replace("/", "+"))]
        path.append(os.environ.get("PYTHONPATH", ""))
        errors = Path(temporary) / "errors"
        measuring = [sys.executable, "-m", "mfulab", "measure", *options, *script.options.split()]
        process = subprocess.Popen(
            [*measuring, *command],
            cwd=folder,
            env={**os.environ, **OLDER, "PYTHONPATH": os.pathsep.join(path)},
            stdout=subprocess.DEVNULL,
            stderr=errors.open("w"),
        )
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < LIMIT_S:
            time.sleep(0.5)
            if training(script, Path(temporary)) is not None:
                time.sleep(1)
                process.send_signal(signal.SIGINT)
                break
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        files = sorted(Path(temporary).glob("row*.json"))
        rows = [parse_json(file.read_text()) for file in files]
        counted = [row for row in rows if row.get("flops")]
        row = dict((counted or rows or [{}])[0])
        row |= training(script, Path(temporary)) or {}
        return {**row, "status": process.returncode, "said": errors.read_text()[-1500:]}


def training(script: Public, place: Path) -> dict[str, object] | None:
    """Row of the training that a script is about, from the script or a process that it started.
    None until it is written."""
    for file in sorted(place.glob("row*.json")):
        row = parse_json(file.read_text())
        if not script.step_of:
            return row
        for part in row.get("trainings", []):
            if part["step_of"] == script.step_of and part["flops"]:
                return part
    return None


def result_line(script: Public, row: dict[str, object], is_right: bool) -> str:
    """Line for a script's result. If it is wrong, followed by the end of the error output."""
    verdict = "right" if is_right else "WRONG"
    line = f"{script.name}: {verdict}, {row.get('flops')} FLOPs, by hand {script.flops}"
    details = f"{row.get('models')}, {row.get('step_of')}, samples/s {row.get('samples_per_s')}"
    return f"{line}; {details}" if is_right else f"{line}; {details}\n{row['said']}"


def table() -> str:
    """Table for the docs: scripts with their commands and FLOPs."""
    lines = [
        "| repository, folder | command | FLOPs of a step by hand | counted |",
        "|---|---|---|---|",
    ]
    for script in SCRIPTS:
        place = script.repository + ("" if script.folder == "." else f", {script.folder}")
        flops = "no module: one sentence" if script.flops is None else f"{script.flops:,}"
        lines.append(f"| {place} | `{script.command}` | {flops} | the same |")
    return "\n".join(lines)


def main() -> int:
    """Prints a line per script. Returns 1 if the FLOPs of any differ from those by hand."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clones", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", default=[script.name for script in SCRIPTS])
    parser.add_argument("--list", action="store_true", dest="is_list")
    parser.add_argument(
        "--table", action="store_true", dest="is_table", help="print the table of docs/loops.md"
    )
    parser.add_argument("--out", type=Path, help="write the rows here")
    options = parser.parse_args()
    if options.is_list or not (options.clones or options.is_table):
        print("\n".join(f"{repository} {commit}" for repository, commit in COMMITS.items()))
        return 0
    if options.is_table:
        print(table())
        return 0
    wrong = 0
    rows = {}
    with tempfile.TemporaryDirectory() as data:
        write_data(Path(data))
        for script in SCRIPTS:
            if script.name in options.only:
                row = measured(script, options.clones.absolute(), Path(data))
                rows[script.name] = row
                is_right = row.get("flops") == script.flops
                wrong += not is_right
                print(result_line(script, row, is_right), flush=True)
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1, default=str))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
