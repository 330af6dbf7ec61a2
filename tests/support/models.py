"""Shipped model configs, and the published numbers of parameters."""

import yaml
from support.workflow_copy import ROOT

from mfulab.core.groups import ModelConfig

CONFIGS = ROOT / "config" / "model"

# Published numbers. If those are rounded ("124M"), the sum over the published shapes.
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "convnext_tiny": 28_589_128,
    "vit_b_16": 86_567_656,
    "regnet_y_400mf": 4_344_144,
    "regnet_x_400mf": 5_495_976,
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_xl": 1_557_611_200,
    "llama_3_2_1b": 1_235_814_400,
    "llama_3_1_8b": 8_030_261_248,
    "bert_base": 109_514_298,
    "simple_cnn": 4_014_986,
    "digit_cnn": 370_338,
    "linear_1024": 1_049_600,
    "lstm": 19_780_400,
    "mixtral_small": 214_213_120,
    "tiny_kernels": 650,
    "spinning": 650,
    "wide_linear": 2 * 4096**2,
}


def read(name: str) -> ModelConfig:
    """Reads config/model/NAME.yaml."""
    return ModelConfig.model_validate(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()))
