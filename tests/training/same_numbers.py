"""What must come out alike on any number of replicas: a net and its data for each behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from nets import (
    CLASSES,
    FIVE_HEADS,
    ONE_HOT,
    REDUCTIONS,
    ROW_WEIGHTS,
    SGD,
    STEP_WEIGHTS,
    STEPS,
    TOKENS,
    YES,
    Adam,
    AdamW,
    CountingInFloats,
    Gan,
    MeanPenalty,
    OwnComputeLoss,
    OwnComputeMetrics,
    OwnTrainAndTestStep,
    OwnTrainStep,
    ScaledTrainStep,
    StepWithASum,
    StepWithMoreLogs,
    X,
    Y,
    batch_norm,
    binary_metrics,
    class_metrics,
    compiled,
    heads,
    labels,
    masked,
    mean_square,
    net,
    number_metrics,
    of,
    opt,
    reductions,
    scalar_losses,
    several,
    sgd,
    slow,
    spread,
)
from runs import dataset, dense, kernel, train


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
