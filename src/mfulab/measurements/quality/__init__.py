"""Row of a model made cheaper and trained: its accuracy, time, FLOPs and bytes."""

from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.configs import SEED, StepConfig
from mfulab.core.groups import DeviceConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Percent, Row, column, counter_column, json_column

Pruned = Literal["masked", "structured", "two_of_four"]
Bits = Literal["bf16", "dynamic_int8", "static_int8", "weight_int8"]
Compression = Literal[
    "none", "pooled", "repeatedly_pooled", "separable", Pruned, Bits, "student", "distilled"
]


class QualityConfig(StepConfig):
    """A small digit CNN made cheaper in one way, trained on real images like the whole model."""

    axes: ClassVar[tuple[str, ...]] = ("compression",)
    compression: Compression = Field(
        "none",
        description="Fewer FLOPs by pooling or separable convolutions; half of the weights pruned; fewer bits; a"
        " smaller model, trained alone or by the whole one.",
    )
    trainings: int = Field(
        5, ge=1, le=100, description="Trainings of each model, each with another seed."
    )
    device: DeviceConfig = DeviceConfig()
    seed: int = SEED


class QualityRow(Row):
    """One compressed model next to the whole model: accuracy on the same held-out images, and times
    measured alternately."""

    compression: str = Field(
        "", description="Way to save; `none` holds the whole model against itself."
    )
    trainings: int | None = counter_column(
        "Trainings of each model, over which intervals are formed."
    )
    accuracy_percent: Percent | None = column(
        "Held-out images classified correctly, mean over the trainings."
    )
    accuracy_half_points: float | None = column(
        "Half the 95 % confidence interval of accuracy_percent."
    )
    whole_accuracy_percent: Percent | None = column(
        "Held-out images that the whole model classifies correctly, mean."
    )
    accuracy_change_points: float | None = column(
        "Mean difference from the whole model, training by training."
    )
    change_half_points: float | None = column(
        "Half the 95 % confidence interval of accuracy_change_points."
    )
    learning_rate: float | None = column("Learning rate of Adam, the same in every epoch.")
    validation_loss: float | None = column(
        "Cross-entropy of held-out images after training, mean over the trainings."
    )
    whole_validation_losses: str | None = json_column(
        "validation loss of the whole model after each epoch, mean."
    )
    flops: int | None = column("FLOPs of an image forward, zeros and 8-bit products included.")
    whole_flops: int | None = column("FLOPs of an image forward in the whole model.")
    weight_bytes: int | None = column(
        "Weights as they are stored, where zeros take as much as others."
    )
    whole_weight_bytes: int | None = column("Weights of the whole model as they are stored.")
    batch_size: int | None = column("Images in a timed forward pass.")
    time_s: float | None = column("Median time of a forward pass.")
    time_percent: float | None = column("Time ÷ the whole model's, median over the rounds.")
    time_low_percent: float | None = column(
        "Lower end of the 95 % confidence interval of time_percent."
    )
    time_high_percent: float | None = column(
        "Upper end of the 95 % confidence interval of time_percent."
    )


MEASUREMENT = Measurement(
    "quality",
    QualityConfig,
    QualityRow,
    "Training {wildcards.run}",
    "compression hardware status accuracy_percent accuracy_change_points change_half_points validation_loss"
    " learning_rate time_percent flops weight_bytes time_s",
    position=85,
)
