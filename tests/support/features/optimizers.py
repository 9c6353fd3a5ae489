"""The arithmetic of optimizers: what is done to a gradient before and after it is summed."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from flavours import is_keras_3, loss_scale
from jobs import Feature, Job, Outcome, without
from parts import BATCH, TOKENS, X, Y, dense, kernel, net, random, rows, sequential, sgd


def by(optimizer: Any) -> Any:
    """A net that this optimizer trains."""
    return lambda k: Job(net(k, lambda: {"optimizer": optimizer(k)}), rows(X, Y))


def scaled(k: Any) -> Job:
    def compiled() -> dict[str, Any]:
        return {"optimizer": loss_scale(k, sgd(k), initial_scale=64.0, growth_steps=3)}

    return Job(net(k, compiled), rows(X, Y))


@tf.custom_gradient
def poisoned(y_pred: Any, factor: Any) -> Any:
    """`y_pred`, whose gradient is multiplied by `factor`."""
    return tf.identity(y_pred), lambda upstream: (upstream * factor, None)


def poisoned_square(y_true: Any, y_pred: Any) -> Any:
    """Squared error of the first column; the gradient is infinite where the second is 1."""
    factor = tf.where(y_true[:, 1:] > 0, np.float32(np.inf), np.float32(1.0))
    return tf.reduce_mean(tf.square(y_true[:, :1] - poisoned(y_pred, factor)), axis=-1)


def skipped(k: Any) -> Job:
    """One row of the second batch has an infinite gradient: no replica may take that step."""
    labels = np.concatenate([Y, np.zeros_like(Y)], axis=1)
    labels[8, 1] = 1.0

    def compiled() -> dict[str, Any]:
        optimizer = loss_scale(k, sgd(k), initial_scale=64.0, growth_steps=3)
        return {"optimizer": optimizer, "loss": poisoned_square}

    def finite(outcome: Outcome, _replicas: int) -> None:
        for name, values in outcome.items():
            assert np.isfinite(values).all(), f"{name} is not finite"

    return Job(net(k, compiled), rows(X, labels), check=finite)


def scheduled(k: Any) -> Job:
    def compiled() -> dict[str, Any]:
        schedule = k.optimizers.schedules.ExponentialDecay(0.1, 4, 0.7)
        return {"optimizer": k.optimizers.SGD(schedule, momentum=0.9)}

    return Job(net(k, compiled), rows(X, Y))


def sparse_gradients(k: Any) -> Job:
    def layers() -> list[Any]:
        return [
            k.Input((5,), dtype="int64"),
            k.layers.Embedding(6, 3, embeddings_initializer=kernel(k, 1)),
            k.layers.Flatten(),
            dense(k, 1, 2),
        ]

    def compiled() -> dict[str, Any]:
        return {"optimizer": k.optimizers.Adam(0.02, global_clipnorm=0.5), "loss": "mse"}

    return Job(sequential(k, layers, compiled), rows(TOKENS, Y))


def gan_class(k: Any) -> Any:
    """Two networks and two optimizers, as in the tutorials; noise from the data."""

    class Gan(k.Model):
        def __init__(self) -> None:
            super().__init__()
            self.generator = k.Sequential([k.Input((3,)), dense(k, 4, 1, "tanh"), dense(k, 1, 2)])
            self.critic = k.Sequential([k.Input((1,)), dense(k, 4, 3, "tanh"), dense(k, 1, 4)])
            self.g_loss, self.d_loss = k.metrics.Mean("g_loss"), k.metrics.Mean("d_loss")
            self.built = True

        def compile(self, g_optimizer: Any, d_optimizer: Any) -> None:
            super().compile()
            self.g_optimizer, self.d_optimizer = g_optimizer, d_optimizer

        def call(self, x: Any) -> Any:
            return self.generator(x)

        @property
        def metrics(self) -> list[Any]:
            return [self.g_loss, self.d_loss]

        def train_step(self, data: Any) -> dict[str, Any]:
            noise, real = data
            with tf.GradientTape() as tape:
                real_score, fake_score = self.critic(real), self.critic(self.generator(noise))
                d_loss = tf.reduce_mean(tf.nn.softplus(-real_score))
                d_loss += tf.reduce_mean(tf.nn.softplus(fake_score))
            weights = self.critic.trainable_variables
            gradients = tape.gradient(d_loss, weights)
            self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))
            with tf.GradientTape() as tape:
                fake_score = self.critic(self.generator(noise))
                g_loss = tf.reduce_mean(tf.nn.softplus(-fake_score))
            weights = self.generator.trainable_variables
            gradients = tape.gradient(g_loss, weights)
            self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
            self.g_loss.update_state(g_loss)
            self.d_loss.update_state(d_loss)
            return {"g_loss": self.g_loss.result(), "d_loss": self.d_loss.result()}

    return Gan


def several(k: Any) -> Job:
    """Keras's own way to give each layer an optimizer."""

    def compiled() -> dict[str, Any]:
        first, rest = k.optimizers.Adam(0.01), sgd(k)
        return {
            "optimizer": k.optimizers.MultiOptimizer(
                lambda variable: first if variable.shape[0] == 3 else rest
            )
        }

    return Job(net(k, compiled), rows(X, Y))


def gan(k: Any) -> Job:
    def model_fn() -> Any:
        model = gan_class(k)()
        model.compile(sgd(k), k.optimizers.Adam(0.01))
        return model

    # Which optimizers a model has, and their order, is not the matter here. A mean of the batches'
    # losses weighs them alike on one device, where several replicas can only weigh rows alike:
    # batches of one size make the two the same.
    data = rows(random(3 * BATCH, 3), random(3 * BATCH, 1, seed=8))
    return Job(model_fn, data, lambda: {"epochs": 6}, expected=without("optimizer"), falls=False)


def two_parts(k: Any) -> Job:
    """The wide and the deep part of one model, each with its own optimizer, from one loss."""

    class TwoParts(k.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = dense(k, 4, 1, "tanh"), dense(k, 1, 2)
            self.second = k.optimizers.Adam(0.01)

        def call(self, x: Any) -> Any:
            return self.out(self.hidden(x))

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = (
                    self.compute_loss(x=x, y=y, y_pred=y_pred)
                    if is_keras_3(k)
                    else self.compute_loss(x, y, y_pred)
                )
            hidden, out = self.hidden.trainable_variables, self.out.trainable_variables
            gradients = tape.gradient(loss, hidden + out)
            first, rest = gradients[: len(hidden)], gradients[len(hidden) :]
            self.optimizer.apply_gradients(zip(first, hidden, strict=True))
            self.second.apply_gradients(zip(rest, out, strict=True))
            return {"loss": loss}

    def model_fn() -> Any:
        model = TwoParts()
        model.compile(sgd(k), "mse")
        return model

    data = rows(random(3 * BATCH, 3), random(3 * BATCH, 1, seed=8))
    expected = without("optimizer", "history")
    return Job(model_fn, data, lambda: {"epochs": 6}, expected=expected, falls=False)


OPTIMIZERS = (
    Feature("SGD with momentum", by(sgd)),
    Feature("SGD, Nesterov", by(lambda k: k.optimizers.SGD(0.02, momentum=0.9, nesterov=True))),
    Feature("Adam and its slots", by(lambda k: k.optimizers.Adam(0.01))),
    Feature("RMSprop", by(lambda k: k.optimizers.RMSprop(0.005, momentum=0.5))),
    Feature("clipnorm", by(lambda k: k.optimizers.SGD(0.1, clipnorm=0.1))),
    Feature("global_clipnorm", by(lambda k: k.optimizers.Adam(0.02, global_clipnorm=0.1))),
    Feature("clipvalue", by(lambda k: sgd(k, 0.1, clipvalue=0.05))),
    Feature("weight decay (AdamW)", by(lambda k: k.optimizers.AdamW(0.02, weight_decay=0.1))),
    Feature(
        "moving average of weights",
        by(lambda k: k.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8)),
    ),
    Feature(
        "moving average written over weights",
        by(
            lambda k: k.optimizers.SGD(
                0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
            )
        ),
    ),
    Feature(
        "gradient accumulation",
        by(lambda k: k.optimizers.Adam(0.02, gradient_accumulation_steps=3, global_clipnorm=0.5)),
        only_keras_3=True,
    ),
    Feature(
        "fixed loss_scale_factor",
        by(lambda k: k.optimizers.SGD(0.1, loss_scale_factor=8.0)),
        only_keras_3=True,
    ),
    Feature("LossScaleOptimizer", scaled),
    Feature("LossScaleOptimizer, one replica not finite", skipped),
    Feature("learning rate schedule", scheduled),
    Feature("sparse gradients of an embedding", sparse_gradients),
    Feature("GAN, two optimizers in an own train_step", gan),
    Feature("two optimizers on one loss", two_parts),
    Feature("MultiOptimizer", several, only_keras_3=True),
)
