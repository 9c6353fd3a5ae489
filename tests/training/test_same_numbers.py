"""Weights, optimizer variables and history do not depend on the number of replicas.

Each case is trained for 20 steps on one device and on several replicas, with
shares that are uneven and a last batch that has fewer rows than replicas. One
device is also compared with `keras.Model.fit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from runs import ROWS, assert_equal, counts, dataset, dense, kernel, random, train, train_stock

X, Y = random(ROWS, 3), random(ROWS, 1, seed=1)
CLASSES = np.random.default_rng(2).integers(0, 3, (ROWS, 1))
ONE_HOT = np.eye(3, dtype="float32")[CLASSES[:, 0]]
YES = (Y > 0).astype("float32")
ROW_WEIGHTS = np.random.default_rng(3).uniform(0, 2, ROWS).astype("float32")
TOKENS = np.random.default_rng(4).integers(1, 6, (ROWS, 5))
for _row, _length in enumerate(np.random.default_rng(5).integers(1, 6, ROWS)):
    TOKENS[_row, _length:] = 0
STEPS = random(ROWS, 5, 1, seed=6)
STEP_WEIGHTS = np.random.default_rng(7).uniform(0, 2, (ROWS, 5)).astype("float32")


@dataclass
class Case:
    """`stock` compares one device with `keras.Model.fit` too, `slots` the optimizer's variables."""

    model: Callable[[], Any]
    data: Callable[[], Any] = lambda: (dataset(X, Y),)
    arguments: dict[str, Any] = field(default_factory=dict)
    stock: bool = True
    slots: bool = True
    rtol: float = 1e-5
    atol: float = 1e-6


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def slow():
    """For sums over rows and layers that amplify: rounding must not grow in 20 steps."""
    return keras.optimizers.SGD(0.005)


def net(*, optimizer=sgd, loss="mse", units=1, activation=None, **compiled):
    """A function that makes a net of two dense layers, compiled."""

    def model_fn():
        model = keras.Sequential(
            [keras.Input((3,)), dense(4, 1, "tanh"), dense(units, 2, activation)]
        )
        made = {name: each() if callable(each) else each for name, each in compiled.items()}
        model.compile(optimizer(), loss() if isinstance(loss, type) else loss, **made)
        return model

    return model_fn


def of(layers, *, optimizer=sgd, loss="mse", **compiled):
    """A function that makes a Sequential of `layers()`, compiled."""

    def model_fn():
        model = keras.Sequential(layers())
        made = {name: each() if callable(each) else each for name, each in compiled.items()}
        model.compile(optimizer(), loss, **made)
        return model

    return model_fn


def heads(losses, *, metrics=None, loss_weights=None):
    """A function that makes a net with one output for each loss, and none sharing a weight."""

    def model_fn():
        x = keras.Input((3,))
        outputs = {
            name: dense(1, index, name=name)(dense(2, index + 50, "tanh")(x))
            for index, name in enumerate(losses)
        }
        model = keras.Model(x, outputs)
        model.compile(slow(), losses, metrics=metrics, loss_weights=loss_weights)
        return model

    return model_fn


REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight")


def reductions():
    return {name: keras.losses.MeanSquaredError(reduction=name) for name in REDUCTIONS}


def labels(names, y=Y):
    return dict.fromkeys(names, y)


def mean_square(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


def dice(y_true, y_pred):
    """Over the batch: no mean of any parts."""
    y_pred = ops.sigmoid(y_pred)
    return 1 - 2 * ops.sum(y_true * y_pred) / (ops.sum(y_true) + ops.sum(y_pred) + 1)


def spread(y_true, y_pred):
    """Has the variance over the batch in it."""
    return ops.var(y_true - y_pred) * ops.abs(ops.mean(y_true))


class ScalarLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return mean_square(y_true, y_pred)


def sum_of_squares(y_true, y_pred):
    return ops.sum(ops.square(y_true - y_pred))


class MeanPenalty(keras.layers.Layer):
    """add_loss, a mean over rows."""

    def call(self, x):
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


class CountingInFloats(keras.layers.Layer):
    """Reads the count of its steps while it trains."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1.0)
        return x * (1 + self.count / 10)


class Rows(keras.metrics.Metric):
    """A user's count, whole numbers."""

    def __init__(self, name="rows"):
        super().__init__(name=name)
        self.seen = self.add_variable((), "zeros", dtype="int32", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign_add(ops.shape(y_true)[0])

    def result(self):
        return ops.cast(self.seen, "float32")

    def reset_state(self):
        self.seen.assign(0)


def binary_metrics():
    return [
        keras.metrics.AUC(num_thresholds=20),
        keras.metrics.Precision(),
        keras.metrics.Recall(),
        keras.metrics.BinaryAccuracy(),
        keras.metrics.SensitivityAtSpecificity(0.5, num_thresholds=20),
        Rows(),
    ]


def class_metrics():
    return [
        keras.metrics.F1Score(average="macro"),
        keras.metrics.CategoricalAccuracy(),
        keras.metrics.TopKCategoricalAccuracy(2),
        keras.metrics.OneHotMeanIoU(3),
        keras.metrics.KLDivergence(),
    ]


def number_metrics():
    return [
        keras.metrics.R2Score(),
        keras.metrics.RootMeanSquaredError(),
        keras.metrics.MeanAbsoluteError(),
        keras.metrics.CosineSimilarity(),
    ]


class OwnTrainStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = dense(4, 1, "tanh"), dense(1, 2)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x):
        return self.out(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}

    @property
    def metrics(self):
        return [self.seen]


class StepWithASum(OwnTrainStep):
    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Sum(name="seen")


class OwnTrainAndTestStep(OwnTrainStep):
    def test_step(self, data):
        x, y = data
        self.seen.update_state(ops.mean(ops.abs(y - self(x, training=False))))
        return {"seen": self.seen.result()}


class StepWithMoreLogs(OwnTrainStep):
    """Its logs have other names than its metrics, so its logs are what counts."""

    def train_step(self, data):
        logs = super().train_step(data)
        return {"running": logs["seen"], "seen": logs["seen"]}


class OwnComputeLoss(OwnTrainStep):
    train_step = keras.Model.train_step
    metrics = keras.Model.metrics

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return ops.mean(ops.abs(y - y_pred)) + 0.1 * ops.mean(ops.square(y_pred))


class OwnComputeMetrics(OwnTrainStep):
    train_step = keras.Model.train_step
    metrics = keras.Model.metrics

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        result = super().compute_metrics(x, y, y_pred, sample_weight)
        self.seen.update_state(ops.mean(y_pred))
        return {**result, "mine": self.seen.result()}


class ScaledTrainStep(OwnTrainStep):
    """Two parts of the weights, each with its own optimizer, from one scaled loss."""

    def __init__(self):
        super().__init__()
        self.second = keras.optimizers.SGD(0.02)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        wide, deep = self.hidden.trainable_variables, self.out.trainable_variables
        gradients = tape.gradient(scaled, wide + deep)
        self.optimizer.apply(gradients[: len(wide)], wide)
        self.second.apply(gradients[len(wide) :], deep)
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}


class Gan(keras.Model):
    """Two networks and two optimizers, as in the tutorials; noise from the data."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), dense(4, 1, "tanh"), dense(1, 2)])
        self.critic = keras.Sequential([keras.Input((1,)), dense(4, 3, "tanh"), dense(1, 4)])
        self.g_loss, self.d_loss = keras.metrics.Mean("g_loss"), keras.metrics.Mean("d_loss")
        self.built = True

    def compile(self, g_optimizer, d_optimizer):
        super().compile()
        self.g_optimizer, self.d_optimizer = g_optimizer, d_optimizer

    def call(self, x):
        return self.generator(x)

    @property
    def metrics(self):
        return [self.g_loss, self.d_loss]

    def train_step(self, data):
        noise, real = data
        with tf.GradientTape() as tape:
            real_score, fake_score = self.critic(real), self.critic(self.generator(noise))
            d_loss = ops.mean(ops.softplus(-real_score)) + ops.mean(ops.softplus(fake_score))
        weights = self.critic.trainable_variables
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            g_loss = ops.mean(ops.softplus(-self.critic(self.generator(noise))))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.g_loss.update_state(g_loss)
        self.d_loss.update_state(d_loss)
        return {"g_loss": self.g_loss.result(), "d_loss": self.d_loss.result()}


def compiled(cls, *arguments, **keywords):
    def model_fn():
        model = cls()
        model.compile(*[each() if callable(each) else each for each in arguments], **keywords)
        return model

    return model_fn


def masked(loss="mse", **compiled):
    return of(
        lambda: [
            keras.Input((5,), dtype="int64"),
            keras.layers.Embedding(6, 3, mask_zero=True, embeddings_initializer=kernel(1)),
            keras.layers.LSTM(
                3,
                return_sequences=True,
                kernel_initializer=kernel(2),
                recurrent_initializer=kernel(3),
            ),
            keras.layers.TimeDistributed(dense(1, 4)),
        ],
        loss=loss,
        **compiled,
    )


def batch_norm(synchronized=True):
    return of(
        lambda: [
            keras.Input((3,)),
            dense(4, 1, use_bias=False),
            keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.7),
            dense(1, 2),
        ],
        optimizer=slow,
    )


def several():
    """Adam for the first kernel, SGD for the rest."""
    first, rest = keras.optimizers.Adam(0.01), SGD(0.05, momentum=0.9, clipnorm=0.5)
    return keras.optimizers.MultiOptimizer(
        lambda variable: first if variable.shape == (3, 4) else rest
    )


def opt(cls, *arguments, **keywords):
    return lambda: cls(*arguments, **keywords)


SGD, Adam, AdamW = keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.AdamW
FIVE_HEADS = ("mean_square", "dice", "spread", "class", "sum")


def scalar_losses():
    return dict(
        zip(FIVE_HEADS, (mean_square, dice, spread, ScalarLoss(), sum_of_squares), strict=True)
    )


CASES = {
    "reductions": Case(heads(reductions()), lambda: (dataset(X, labels(REDUCTIONS)),)),
    "reductions with sample weights": Case(
        heads(reductions()),
        lambda: (dataset(X, labels(REDUCTIONS), labels(REDUCTIONS, ROW_WEIGHTS)),),
    ),
    "reduction none": Case(net(loss=keras.losses.MeanSquaredError(reduction="none")), stock=False),
    "reduction sum of scalars": Case(
        heads({"sum": keras.losses.MeanSquaredError(reduction="sum")}),
        lambda: (dataset(X, labels(["sum"]), labels(["sum"], ROW_WEIGHTS)),),
    ),
    "masks": Case(masked(), lambda: (dataset(TOKENS, STEPS),)),
    "masks with sample weights": Case(
        masked(weighted_metrics=["mae"], metrics=["mse"]),
        lambda: (dataset(TOKENS, STEPS, STEP_WEIGHTS),),
    ),
    "masks and weighted mean": Case(
        masked(keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")),
        lambda: (dataset(TOKENS, STEPS, STEP_WEIGHTS),),
    ),
    "masks and sum": Case(
        masked(keras.losses.MeanSquaredError(reduction="sum"), optimizer=slow),
        lambda: (dataset(TOKENS, STEPS, STEP_WEIGHTS),),
    ),
    "masks and a scalar loss": Case(masked(mean_square), lambda: (dataset(TOKENS, STEPS),)),
    "scalar losses": Case(
        heads(scalar_losses()), lambda: (dataset(X, {**labels(FIVE_HEADS), "dice": YES}),)
    ),
    "scalar losses with sample weights": Case(
        heads(scalar_losses()),
        lambda: (dataset(X, {**labels(FIVE_HEADS), "dice": YES}, labels(FIVE_HEADS, ROW_WEIGHTS)),),
    ),
    "a scalar loss of whole-number labels": Case(
        net(loss=lambda t, p: tf.reduce_mean(tf.square(t - p))),
        lambda: (dataset(X, CLASSES),),
    ),
    "losses by name": Case(
        net(loss="sparse_categorical_crossentropy", units=3, activation="softmax"),
        lambda: (dataset(X, CLASSES),),
    ),
    "add_loss": Case(of(lambda: [keras.Input((3,)), dense(4, 1), MeanPenalty(), dense(1, 2)])),
    "regularizers": Case(
        of(
            lambda: [
                keras.Input((3,)),
                dense(4, 1, kernel_regularizer="l2", bias_regularizer="l1"),
                dense(1, 2, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02)),
            ]
        )
    ),
    "activity regularizer": Case(
        of(lambda: [keras.Input((3,)), dense(4, 1, activity_regularizer="l2"), dense(1, 2)])
    ),
    "several outputs without reduction": Case(
        heads(
            {
                "a": keras.losses.MeanSquaredError(reduction="none"),
                "b": keras.losses.MeanAbsoluteError(reduction="none"),
            }
        ),
        lambda: (dataset(X, labels(["a", "b"])),),
    ),
    "sample weights": Case(
        net(weighted_metrics=["mae"], metrics=["mae"]),
        lambda: (X, Y),
        {"sample_weight": ROW_WEIGHTS, "batch_size": 8, "shuffle": False},
    ),
    "class weights": Case(
        net(loss="sparse_categorical_crossentropy", units=3, activation="softmax"),
        lambda: (X, CLASSES[:, 0]),
        {"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}, "batch_size": 8, "shuffle": False},
    ),
    "several outputs": Case(
        heads(
            {"a": "mse", "b": "mae", "c": keras.losses.MeanSquaredError(reduction="sum")},
            metrics={"a": ["mae"], "b": ["mse"]},
            loss_weights={"a": 0.5, "b": 2.0, "c": 0.1},
        ),
        lambda: (dataset(X, {"a": Y, "b": YES, "c": Y}),),
    ),
    "clipnorm": Case(net(optimizer=opt(SGD, 0.1, clipnorm=0.1))),
    "global_clipnorm": Case(net(optimizer=opt(Adam, 0.02, global_clipnorm=0.1))),
    "clipvalue": Case(net(optimizer=opt(SGD, 0.1, momentum=0.9, clipvalue=0.05))),
    "weight decay": Case(net(optimizer=opt(AdamW, 0.02, weight_decay=0.1))),
    "ema": Case(
        net(optimizer=opt(SGD, 0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3))
    ),
    "ema at the end": Case(net(optimizer=opt(Adam, 0.02, use_ema=True, ema_momentum=0.8))),
    "accumulation": Case(
        net(optimizer=opt(Adam, 0.02, gradient_accumulation_steps=3, global_clipnorm=0.5))
    ),
    "accumulation and ema": Case(
        net(
            optimizer=opt(
                SGD,
                0.1,
                gradient_accumulation_steps=2,
                use_ema=True,
                ema_momentum=0.8,
                ema_overwrite_frequency=2,
            )
        )
    ),
    "loss scale": Case(
        net(
            optimizer=lambda: keras.optimizers.LossScaleOptimizer(
                SGD(0.05, momentum=0.9), initial_scale=64.0, dynamic_growth_steps=3
            )
        )
    ),
    **(
        {
            "several optimizers": Case(net(optimizer=several)),
            "several optimizers and a loss scale": Case(
                net(
                    optimizer=lambda: keras.optimizers.LossScaleOptimizer(
                        several(), initial_scale=64.0, dynamic_growth_steps=3
                    )
                )
            ),
        }
        if hasattr(keras.optimizers, "MultiOptimizer")  # not in Keras 3.12
        else {}
    ),
    "fixed loss scale factor": Case(net(optimizer=opt(SGD, 0.1, loss_scale_factor=8.0))),
    "binary metrics": Case(
        net(loss="binary_crossentropy", activation="sigmoid", metrics=binary_metrics),
        lambda: (dataset(X, YES),),
    ),
    "class metrics": Case(
        net(loss="categorical_crossentropy", units=3, activation="softmax", metrics=class_metrics),
        lambda: (dataset(X, ONE_HOT),),
    ),
    "number metrics": Case(
        net(metrics=number_metrics, weighted_metrics=number_metrics),
        lambda: (dataset(X, Y, ROW_WEIGHTS),),
    ),
    "a function as metric": Case(net(metrics=[mean_square])),
    "a metric over the batch": Case(net(metrics=[spread])),
    "own train_step": Case(compiled(OwnTrainStep, sgd, "mse")),
    "own train_step with more logs": Case(compiled(StepWithMoreLogs, sgd, "mse")),
    "own train_step with a sum": Case(compiled(StepWithASum, sgd, "mse")),
    "own test_step": Case(
        compiled(OwnTrainAndTestStep, sgd, "mse"),
        arguments={"validation_data": (X[:7], Y[:7])},
    ),
    "own compute_loss": Case(compiled(OwnComputeLoss, sgd)),
    "own compute_metrics": Case(compiled(OwnComputeMetrics, sgd, "mse", metrics=["mae"])),
    "own train_step, two optimizers on one loss": Case(
        # Keras gives the first optimizer slots for its own part only.
        compiled(ScaledTrainStep, sgd, "mse"),
        slots=False,
    ),
    "gan": Case(compiled(Gan, sgd, opt(Adam, 0.01)), slots=False),
    "synchronised batch normalisation": Case(batch_norm()),
    "spectral normalisation": Case(
        of(
            lambda: [
                keras.Input((3,)),
                keras.layers.SpectralNormalization(dense(4, 1)),
                dense(1, 2),
            ]
        )
    ),
    "a layer that counts its steps": Case(
        of(
            lambda: [keras.Input((3,)), dense(4, 1), CountingInFloats(), dense(1, 2)],
            optimizer=slow,
        )
    ),
    "embedding": Case(
        of(
            lambda: [
                keras.Input((5,), dtype="int64"),
                keras.layers.Embedding(6, 3, embeddings_initializer=kernel(1)),
                keras.layers.Flatten(),
                dense(1, 2),
            ],
            optimizer=opt(Adam, 0.02, global_clipnorm=0.5),
        ),
        lambda: (dataset(TOKENS, Y),),
    ),
    "gru": Case(
        of(
            lambda: [
                keras.Input((5, 1)),
                keras.layers.GRU(3, kernel_initializer=kernel(1), recurrent_initializer=kernel(2)),
                dense(1, 3),
            ]
        ),
        lambda: (dataset(STEPS, Y),),
    ),
    "convolution": Case(
        of(
            lambda: [
                keras.Input((5, 1)),
                keras.layers.Conv1D(3, 2, kernel_initializer=kernel(1), activation="relu"),
                keras.layers.GlobalAveragePooling1D(),
                dense(1, 3),
            ]
        ),
        lambda: (dataset(STEPS, Y),),
    ),
    "layer normalisation and attention": Case(
        of(
            lambda: [
                keras.Input((5, 1)),
                dense(4, 1),
                keras.layers.LayerNormalization(),
                keras.layers.GlobalMaxPooling1D(),
                dense(1, 3),
            ],
            optimizer=opt(SGD, 0.02),
        ),
        lambda: (dataset(STEPS, Y),),
    ),
}

_one_device = {}


def on_one_device(name):
    if name not in _one_device:
        case = CASES[name]
        keras.utils.set_random_seed(0)
        _one_device[name] = train(case.model, case.data, 1, **case.arguments)
    return _one_device[name]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.stock])
def test_one_device_trains_as_keras_does(name):
    case = CASES[name]

    stock = train_stock(case.model, case.data, **case.arguments)

    expected = on_one_device(name)
    assert_equal(expected, stock, rtol=case.rtol, atol=case.atol, slots=case.slots)


# Each count meets cases of every sort; tracing a replica is what takes the time.
ON = [
    (name, count)
    for number, name in enumerate(CASES)
    for count in counts((2, 2, 3, 2, 4)[number % 5])
]


@pytest.mark.parametrize(("name", "replicas"), ON)
def test_replicas_train_as_one_device_does(name, replicas):
    case = CASES[name]
    expected = on_one_device(name)

    ours = train(case.model, case.data, replicas, **case.arguments)

    assert_equal(ours, expected, rtol=case.rtol, atol=case.atol)
