"""Losses, their reductions, and the weights of rows, classes, outputs and steps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from jobs import Feature, Job
from parts import (
    CLASSES,
    ONE_HOT,
    ROW_WEIGHTS,
    STEP_WEIGHTS,
    STEPS,
    TOKENS,
    YES,
    X,
    Y,
    dense,
    heads,
    in_order,
    kernel,
    mean_square,
    net,
    rows,
    sequential,
    sgd,
    slow,
)


def dice(y_true: Any, y_pred: Any) -> Any:
    """Over the batch: no mean of any parts."""
    y_pred = tf.sigmoid(y_pred)
    total = tf.reduce_sum(y_true) + tf.reduce_sum(y_pred) + 1
    return 1 - 2 * tf.reduce_sum(y_true * y_pred) / total


def of_each_row(y_true: Any, y_pred: Any) -> Any:
    """A user's loss with a number for each row."""
    return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1) ** 2


def reduced(reduction: str, optimizer: Any = sgd) -> Any:
    """Mean squared error with one of Keras's reductions."""

    def make(k: Any) -> Job:
        def compiled() -> dict[str, Any]:
            loss = k.losses.MeanSquaredError(reduction=reduction)
            return {"optimizer": optimizer(k), "loss": loss}

        return Job(net(k, compiled), rows(X, Y))

    return make


def weighted_reduction(k: Any) -> Job:
    def compiled() -> dict[str, Any]:
        return {"loss": k.losses.MeanSquaredError(reduction="mean_with_sample_weight")}

    return Job(net(k, compiled), rows(X, Y, ROW_WEIGHTS))


def by_function(loss: Any, labels: Any = Y) -> Any:
    """A function of the user's as loss."""

    def make(k: Any) -> Job:
        return Job(net(k, lambda: {"loss": loss}), rows(X, labels))

    return make


def scalar_with_weights(k: Any) -> Job:
    return Job(net(k, lambda: {"loss": mean_square}), rows(X, Y, ROW_WEIGHTS))


def loss_class(k: Any) -> Job:
    class MeanOfSquares(k.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return mean_square(y_true, y_pred)

    return Job(net(k, lambda: {"loss": MeanOfSquares()}), rows(X, Y))


def added(k: Any) -> Job:
    class MeanPenalty(k.layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(0.1 * tf.reduce_mean(tf.square(x)))
            return x

    layers = lambda: [k.Input((3,)), dense(k, 4, 1), MeanPenalty(), dense(k, 1, 2)]  # noqa: E731
    return Job(sequential(k, layers, lambda: {"optimizer": sgd(k), "loss": "mse"}), rows(X, Y))


def regularized(k: Any) -> Job:
    def layers() -> list[Any]:
        return [
            k.Input((3,)),
            dense(k, 4, 1, kernel_regularizer="l2", bias_regularizer="l1"),
            dense(k, 1, 2, kernel_regularizer=k.regularizers.L1L2(0.01, 0.02)),
        ]

    return Job(sequential(k, layers, lambda: {"optimizer": sgd(k), "loss": "mse"}), rows(X, Y))


def activity_regularized(k: Any) -> Job:
    def layers() -> list[Any]:
        return [k.Input((3,)), dense(k, 4, 1, activity_regularizer="l2"), dense(k, 1, 2)]

    return Job(sequential(k, layers, lambda: {"optimizer": sgd(k), "loss": "mse"}), rows(X, Y))


def sample_weights(k: Any) -> Job:
    model = net(k, lambda: {"metrics": ["mae"], "weighted_metrics": ["mae"]})
    return Job(model, lambda: (X, Y), in_order(sample_weight=ROW_WEIGHTS))


def class_weights(k: Any) -> Job:
    model = net(
        k,
        lambda: {"loss": "sparse_categorical_crossentropy"},
        units=3,
        activation="softmax",
    )
    weights = {0: 1.0, 1: 3.0, 2: 0.5}
    return Job(model, lambda: (X, CLASSES[:, 0]), in_order(class_weight=weights))


def from_logits(k: Any) -> Job:
    def compiled() -> dict[str, Any]:
        return {"loss": k.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)}

    return Job(net(k, compiled, units=3), rows(X, ONE_HOT))


def several_outputs(k: Any) -> Job:
    model = heads(
        k,
        lambda: {"a": "mse", "b": "mae", "c": k.losses.MeanSquaredError(reduction="sum")},
        metrics={"a": ["mae"], "b": ["mse"]},
        loss_weights={"a": 0.5, "b": 2.0, "c": 0.1},
    )
    return Job(model, rows(X, {"a": Y, "b": YES, "c": Y}))


def several_outputs_with_weights(k: Any) -> Job:
    model = heads(k, lambda: {"a": "mse", "b": mean_square})
    weights = {"a": ROW_WEIGHTS, "b": ROW_WEIGHTS[::-1].copy()}
    return Job(model, rows(X, {"a": Y, "b": YES}, weights))


def masked_model(k: Any, **compiled: Any) -> Any:
    """Tokens, of which 0 is none, to a number for each step."""

    def layers() -> list[Any]:
        return [
            k.Input((5,), dtype="int64"),
            k.layers.Embedding(6, 3, mask_zero=True, embeddings_initializer=kernel(k, 1)),
            k.layers.LSTM(
                3,
                return_sequences=True,
                kernel_initializer=kernel(k, 2),
                recurrent_initializer=kernel(k, 3),
            ),
            k.layers.TimeDistributed(dense(k, 1, 4)),
        ]

    return sequential(k, layers, lambda: {"optimizer": slow(k), "loss": "mse", **compiled})


def masked(k: Any) -> Job:
    return Job(masked_model(k), rows(TOKENS, STEPS))


def temporal_weights(k: Any) -> Job:
    model = masked_model(k, weighted_metrics=["mae"])
    return Job(model, rows(TOKENS, STEPS, STEP_WEIGHTS))


LOSSES = (
    Feature("loss, mean over the batch", reduced("sum_over_batch_size")),
    Feature("loss, sum over the batch", reduced("sum", slow)),
    Feature("loss, reduction mean", reduced("mean"), only_keras_3=True),
    Feature("loss, reduction mean_with_sample_weight", weighted_reduction, only_keras_3=True),
    Feature("loss, reduction none", reduced("none", slow)),
    Feature("loss of logits", from_logits),
    Feature("own loss, a number for each row", by_function(of_each_row)),
    Feature("own loss, one number", by_function(mean_square)),
    Feature("own loss, one number, with sample weights", scalar_with_weights),
    Feature("own loss class, one number", loss_class),
    Feature("own loss over the whole batch (Dice)", by_function(dice, YES)),
    Feature("add_loss, a mean over rows", added),
    Feature("regularizers", regularized),
    Feature("activity regularizer", activity_regularized),
    Feature("sample_weight", sample_weights),
    Feature("class_weight", class_weights),
    Feature("several outputs with loss_weights", several_outputs),
    Feature("several outputs with sample weights", several_outputs_with_weights),
    Feature("masked sequences", masked),
    Feature("masked sequences with weights of steps", temporal_weights),
)
