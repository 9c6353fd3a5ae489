"""Small nets that the cases train, and their rows."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from runs import ROWS, dense, kernel, random

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
