"""The rows of the table, in groups."""

from __future__ import annotations

from jobs import Feature

from features.batches import BATCHES
from features.callbacks import CALLBACKS
from features.execution import EXECUTION
from features.inputs import INPUTS
from features.layers import LAYERS
from features.life import LIFE
from features.losses import LOSSES
from features.metrics import METRICS
from features.optimizers import OPTIMIZERS
from features.own_steps import OWN_STEPS

GROUPS: dict[str, tuple[Feature, ...]] = {
    "Losses and weights": LOSSES,
    "Batches": BATCHES,
    "Optimizers": OPTIMIZERS,
    "Metrics, evaluate, predict": METRICS,
    "Data": INPUTS,
    "Layers": LAYERS,
    "Precision and execution": EXECUTION,
    "Own steps": OWN_STEPS,
    "Life of a model": LIFE,
    "Callbacks": CALLBACKS,
}
FEATURES: dict[str, Feature] = {
    feature.name: feature for group in GROUPS.values() for feature in group
}
