"""Samples of a step: the loop's batch, whatever number of models sees it."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

import mfulab

BATCH, WIDTH = 6, 8


def x(rows=BATCH):
    return torch.randn(rows, WIDTH)


def layer(width=WIDTH):
    return nn.Linear(WIDTH, width)


def encoder_and_decoder():
    encoder, decoder = layer(), layer()
    return [encoder, decoder], lambda: decoder(encoder(x())).sum().backward(), BATCH


def encoder_and_decoder_in_inference():
    encoder, decoder = layer(), layer()
    return [encoder, decoder], torch.no_grad()(lambda: decoder(encoder(x()))), BATCH


def actor_and_critic_with_a_backward_pass_each():
    actor, critic = layer(), layer(1)

    def step():
        inputs = x()
        actor(inputs).sum().backward()
        critic(inputs).sum().backward()

    return [actor, critic], step, BATCH


def gan():
    generator, critic = layer(), layer(1)

    def step():
        made = generator(x())
        (critic(x()).mean() - critic(made.detach()).mean()).backward()
        critic(made).mean().backward()

    return [generator, critic], step, BATCH


def teacher_and_student():
    teacher, student = layer(), layer()

    def step():
        inputs = x()
        with torch.no_grad():
            wanted = teacher(inputs)
        (student(inputs) - wanted).square().sum().backward()

    return [teacher, student], step, BATCH


def two_views_of_one_model():
    model = layer()
    return model, lambda: cosine_similarity(model(x()), model(x())).sum().backward(), BATCH


def validation_inside_a_step():
    model = layer()

    def step():
        model(x()).sum().backward()
        with torch.no_grad():
            model(x(50))

    return model, step, BATCH


def accumulated_gradients():
    model = layer()

    def step():
        for _ in range(3):
            model(x(2)).sum().backward()

    return model, step, BATCH


def accumulated_gradients_of_two_models():
    encoder, decoder = layer(), layer()

    def step():
        for _ in range(3):
            decoder(encoder(x(2))).sum().backward()

    return [encoder, decoder], step, BATCH


def two_losses_of_one_forward_pass():
    model = layer()

    def step():
        out = model(x())
        out.sum().backward(retain_graph=True)
        out.square().sum().backward()

    return model, step, BATCH


def calls_of_other_batches():
    model = layer()
    return model, lambda: (model(x()).sum() + model(x(5)).sum()).backward(), None


KINDS = [
    encoder_and_decoder,
    encoder_and_decoder_in_inference,
    actor_and_critic_with_a_backward_pass_each,
    gan,
    teacher_and_student,
    two_views_of_one_model,
    validation_inside_a_step,
    accumulated_gradients,
    accumulated_gradients_of_two_models,
    two_losses_of_one_forward_pass,
    calls_of_other_batches,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_samples_of_a_step_are_the_loops_batch(kind):
    models, step, samples = kind()
    with mfulab.measure(models, ceiling_s=0, quiet=True) as window:
        for _ in range(14):
            step()
            window.step()
    assert {one.samples for one in window._steps} == {samples}
    assert (window.row["samples_per_s"] is None) == (samples is None)
    found = bool(window.readings["samples_per_s"].reason if samples is None else "")
    assert found == (samples is None)
