"""Every test here: four virtual CPUs, one seed, and Keras as it was before."""

import keras
import pytest
import tensorflow as tf
from keras.src.backend.common import KerasVariable
from keras.src.backend.tensorflow.core import Variable
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.losses import loss
from keras.src.metrics import metric, reduction_metrics
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers import compile_utils
from keras.src.trainers.trainer import Trainer

# Whatever stands in for a part of Keras while a step is traced lives in one of these.
OWNERS = (
    KerasVariable,
    Variable,
    TFOptimizer,
    BaseOptimizer,
    keras.optimizers.LossScaleOptimizer,
    loss,
    loss.Loss,
    metric,
    metric.Metric,
    reduction_metrics,
    compile_utils.MetricsList,
    keras.metrics.Mean,
    keras.metrics.MeanMetricWrapper,
    keras.layers.BatchNormalization,
    keras.layers.Layer,
    keras.Model,
    Trainer,
    tf.__internal__.distribute.interim,
)


@pytest.fixture(scope="session")
def keras_before(four_cpus):
    return [dict(vars(owner)) for owner in OWNERS]


@pytest.fixture(autouse=True)
def _keras_is_left_as_it_was(keras_before):
    keras.utils.set_random_seed(0)
    yield
    changed = [
        (owner, name, before[name])
        for owner, before in zip(OWNERS, keras_before, strict=True)
        for name, value in list(vars(owner).items())
        if name in before and before[name] is not value and not name.startswith("__dict")
    ]
    for owner, name, value in changed:  # so that one fault does not look like many
        setattr(owner, name, value)
    assert [f"{owner.__name__}.{name}" for owner, name, _ in changed] == []
