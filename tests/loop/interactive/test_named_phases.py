"""Named phases of reinforcement learning and diffusion, counted by hand."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional

import mfulab

WIDTH, VOCABULARY, PROMPT, MADE, GROUP = 16, 24, 6, 4, 3


class Policy(nn.Module):
    """A decoder of one block without a cache: each token made runs all tokens before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Linear(WIDTH, VOCABULARY, bias=False),
        )
        self.qkv, self.out = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )

    def forward(self, tokens):
        hidden = self.embed(tokens)
        query, key, value = self.qkv(hidden).chunk(3, -1)
        scores = (query @ key.transpose(1, 2)).softmax(-1)
        return self.head(self.out(scores @ value))


def forward_flops(tokens: int) -> int:
    """FLOPs of a forward pass of the group by hand: projections, head, and all pairs of attention
    twice."""
    matrices = WIDTH * 3 * WIDTH + WIDTH * WIDTH + WIDTH * VOCABULARY
    return 2 * GROUP * tokens * matrices + 2 * 2 * GROUP * tokens * tokens * WIDTH


def grpo(window, policy, reference, optimizer, steps):
    """Group-relative policy optimisation: rollout, reference and reward, then one step on the
    group."""
    for _ in range(steps):
        tokens = torch.randint(VOCABULARY, (GROUP, PROMPT))
        with window.phase("rollout"), torch.no_grad():
            for _ in range(MADE):
                tokens = torch.cat([tokens, policy(tokens)[:, -1].argmax(-1, keepdim=True)], 1)
        with window.phase("reference"), torch.no_grad():
            kept = reference(tokens).log_softmax(-1)
            reward = (tokens == 1).float().mean(1)
        with window.phase("train"):
            optimizer.zero_grad()
            now = policy(tokens).log_softmax(-1)
            advantage = (reward - reward.mean())[:, None, None]
            (-(now * advantage).mean() + (now.exp() * (now - kept)).mean()).backward()
            optimizer.step()
        window.step()


def test_a_grpo_like_loop_has_a_row_a_phase():
    policy, reference = Policy(), Policy()
    optimizer = torch.optim.AdamW(policy.parameters())
    with mfulab.measure(
        [policy, reference], quiet=True, ceiling_s=0, peak_tflop_s={"fp32": 1.0}
    ) as window:
        grpo(window, policy, reference, optimizer, 6)
    whole = PROMPT + MADE
    by_hand = {
        "rollout": sum(forward_flops(PROMPT + made) for made in range(MADE)),
        "reference": forward_flops(whole),
        "train": 3 * forward_flops(whole),
    }
    assert {name: row["flops"] for name, row in window.phases.items()} == by_hand
    assert window.row["flops"] == sum(by_hand.values())
    for row in window.phases.values():
        assert row["calls"] == 6
        assert not row["only_counted"]
        found = row["mfu_spec_percent"]
        assert found == pytest.approx(row["flops"] / row["mean_s"] / 1e12 * 100, rel=0.5)
    assert sum(row["step_percent"] for row in window.phases.values()) == pytest.approx(100, abs=40)


class UNet(nn.Module):
    """One level down and up again, joined by a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.down = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
        )
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 3, 3, padding=1)
        self.time = nn.Linear(1, 8)

    def forward(self, image, time):
        first = self.into(image) + self.time(time[:, None])[:, :, None, None]
        return self.out(
            torch.cat([first, self.up(functional.silu(self.down(functional.silu(first))))], 1)
        )


class DiT(nn.Module):
    """A transformer of one block on patches of 4 × 4, with the time as a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.block = nn.Conv2d(3, WIDTH, 4, stride=4), nn.Linear(WIDTH, 4 * WIDTH)
        self.back, self.out, self.time = (
            nn.Linear(4 * WIDTH, WIDTH),
            nn.Linear(WIDTH, 48),
            nn.Linear(1, WIDTH),
        )

    def forward(self, image, time):
        tokens = self.patch(image).flatten(2).transpose(1, 2) * self.time(time[:, None])[:, None]
        tokens = tokens + (tokens @ tokens.transpose(1, 2)).softmax(-1) @ tokens
        tokens = self.out(tokens + self.back(functional.gelu(self.block(tokens))))
        return functional.pixel_shuffle(tokens.transpose(1, 2).reshape(len(image), 48, 4, 4), 4)


BATCH, SIDE, SAMPLED = 2, 16, 3
PIXELS = BATCH * SIDE * SIDE
UNET = {
    "into": 2 * PIXELS * 3 * 8 * 9,
    "others": 2 * (PIXELS // 4) * (8 * 16 * 9 + 16 * 8 * 4) + 2 * PIXELS * 16 * 3 * 9,
    "time": 2 * BATCH * 8,
}
TOKENS = BATCH * 16
DIT = {
    "into": 2 * TOKENS * 48 * WIDTH,
    "others": 2 * TOKENS * (8 * WIDTH * WIDTH + WIDTH * 48) + 2 * 2 * TOKENS * 16 * WIDTH,
    "time": 2 * BATCH * WIDTH,
}


@pytest.mark.parametrize(("kind", "parts"), [(UNet, UNET), (DiT, DIT)])
def test_a_diffusion_loop_has_rows_for_sampling_and_training(kind, parts):
    model = kind()
    optimizer = torch.optim.AdamW(model.parameters())
    with mfulab.measure(model, quiet=True, ceiling_s=0, peak_tflop_s={"fp32": 1.0}) as window:
        for _ in range(5):
            image = torch.randn(BATCH, 3, SIDE, SIDE)
            noise = torch.randn(BATCH, 3, SIDE, SIDE)
            time = torch.rand(BATCH)
            with window.phase("train"):
                optimizer.zero_grad()
                functional.mse_loss(
                    model(image + time[:, None, None, None] * noise, time), noise
                ).backward()
                optimizer.step()
            with window.phase("sample"), torch.no_grad():
                for step in range(SAMPLED):
                    noise = noise - model(noise, torch.full((BATCH,), 1 - step / SAMPLED)) / SAMPLED
            window.step()
    forward = sum(parts.values())
    assert window.phases["sample"]["flops"] == SAMPLED * forward
    # No gradient of the image, nor of the time.
    assert window.phases["train"]["flops"] == 3 * forward - parts["into"] - parts["time"]


def test_phases_inside_one_another_and_after_an_error(capsys):
    model = nn.Linear(8, 8)
    with mfulab.measure(model, ceiling_s=0) as window:
        for number in range(6):
            with window.phase("outer"):
                model(torch.randn(4, 8))
                with contextlib.suppress(KeyError), window.phase("inner"):
                    model(torch.randn(4, 8))
                    if number == 4:
                        raise KeyError
            window.step()
    one = 2 * 4 * 8 * 8
    found = {name: (row["flops"], row["calls"]) for name, row in window.phases.items()}
    assert found == {"inner": (one, 6), "outer": (2 * one, 6)}
    assert "outer" in capsys.readouterr().out


def test_a_phase_that_multiplies_nothing_says_why():
    model = nn.Linear(8, 8)
    with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for _ in range(4):
            with window.phase("reward"):
                sum(range(1000))
            model(torch.randn(4, 8))
            window.step()
    assert window.phases["reward"]["flops"] is None
    assert "no_operator_with_formula" in window.phases["reward"]["reason"]
