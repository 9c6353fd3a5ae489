"""Layers that keep something beside their weights, draw numbers, or know of masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from flavours import counting_variable
from jobs import Feature, Job, Outcome
from parts import (
    STEPS,
    TOKENS,
    X,
    Y,
    dense,
    kernel,
    net,
    random,
    rows,
    sequential,
    sgd,
    slow,
)


def layered(layers: Any, x: Any = X, *, optimizer: Any = slow) -> Any:
    """A Sequential of these layers."""

    def make(k: Any) -> Job:
        compiled = lambda: {"optimizer": optimizer(k), "loss": "mse"}  # noqa: E731
        return Job(sequential(k, lambda: layers(k), compiled), rows(x, Y))

    return make


def synchronized(k: Any) -> list[Any]:
    return [
        k.Input((3,)),
        dense(k, 4, 1, use_bias=False),
        k.layers.BatchNormalization(synchronized=True, momentum=0.7),
        dense(k, 1, 2),
    ]


def batch_statistics(k: Any) -> Job:
    """Moving statistics must be the mean over replicas, each of its own contiguous rows."""
    x, batch, momentum = random(24, 3) * 2 + 1, 8, 0.7

    def layers() -> list[Any]:
        return [k.Input((3,)), k.layers.BatchNormalization(momentum=momentum), dense(k, 1, 2)]

    def script(session: Any) -> None:
        session.fit(rows(x, random(24, 1), batch=batch), epochs=2)
        layer = next(each for each in session.model.layers if hasattr(each, "moving_mean"))
        session.tell("moving_mean", layer.moving_mean)
        session.tell("moving_variance", layer.moving_variance)

    def expected(_plain: Outcome, replicas: int) -> Outcome:
        mean, variance = np.zeros(3), np.ones(3)
        for start in (0, 8, 16) * 2:
            shares = np.split(x[start : start + batch].astype("float64"), replicas)
            keep = 1 - momentum
            mean += keep * (np.mean([each.mean(0) for each in shares], axis=0) - mean)
            variance += keep * (np.mean([each.var(0) for each in shares], axis=0) - variance)
        return {"moving_mean": mean, "moving_variance": variance}

    compiled = lambda: {"optimizer": slow(k), "loss": "mse"}  # noqa: E731
    model = sequential(k, layers, compiled)
    return Job(model, dict, script=script, expected=expected, exact=(), falls=False)


def dropout(k: Any) -> Job:
    """One step on two rows of ones: each weight then says in how many of the rows it was kept."""

    def layers() -> list[Any]:
        return [
            k.Input((256,)),
            k.layers.Dropout(0.5, seed=7),
            k.layers.Dense(1, kernel_initializer="zeros", use_bias=False),
        ]

    def script(session: Any) -> None:
        ones = np.ones((2, 256), "float32")
        for name in ("first", "again"):
            session.begin()
            session.fit(rows(ones, ones[:, :1], batch=2), epochs=1)
            session.tell(name, session.model.get_weights()[0][:, 0])

    def check(outcome: Outcome, _replicas: int) -> None:
        kept = outcome["first"] / outcome["first"].max()
        once = np.isclose(kept, 0.5).mean()
        twice = np.isclose(kept, 1.0).mean()
        assert 0.35 < once < 0.65, f"{once:.0%} of the units are kept in just one of two rows"
        assert 0.1 < twice < 0.4, f"{twice:.0%} of the units are kept in both rows"
        again = np.array_equal(outcome["first"], outcome["again"])
        assert again, "the same seed gives other masks the second time"

    compiled = lambda: {"optimizer": k.optimizers.SGD(0.1), "loss": "mse"}  # noqa: E731
    nothing = lambda _plain, _replicas: {}  # noqa: E731
    return Job(
        sequential(k, layers, compiled),
        dict,
        script=script,
        expected=nothing,
        check=check,
        exact=(),
        falls=False,
    )


def recurrent(name: str) -> Any:
    """An LSTM or GRU on tokens, of which 0 is none."""

    def layers(k: Any) -> list[Any]:
        return [
            k.Input((5,), dtype="int64"),
            k.layers.Embedding(6, 3, mask_zero=True, embeddings_initializer=kernel(k, 1)),
            getattr(k.layers, name)(
                3, kernel_initializer=kernel(k, 2), recurrent_initializer=kernel(k, 3)
            ),
            dense(k, 1, 4),
        ]

    return layers


def embedding(k: Any) -> list[Any]:
    table = k.layers.Embedding(6, 3, embeddings_initializer=kernel(k, 1))
    return [k.Input((5,), dtype="int64"), table, k.layers.Flatten(), dense(k, 1, 2)]


def spectral(k: Any) -> list[Any]:
    return [k.Input((3,)), k.layers.SpectralNormalization(dense(k, 4, 1)), dense(k, 1, 2)]


def counting(k: Any) -> list[Any]:
    class CountingInFloats(k.layers.Layer):
        """Reads the count of its steps while it trains."""

        def build(self, shape: Any) -> None:
            self.count = counting_variable(self, k)

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.count.assign_add(1.0)
            return x * (1 + tf.convert_to_tensor(self.count) / 10)

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    return [k.Input((3,)), dense(k, 4, 1), CountingInFloats(), dense(k, 1, 2)]


def convolution(k: Any) -> list[Any]:
    return [
        k.Input((5, 1)),
        k.layers.Conv1D(3, 2, kernel_initializer=kernel(k, 1), activation="relu"),
        k.layers.GlobalAveragePooling1D(),
        dense(k, 1, 3),
    ]


def normalized(k: Any) -> list[Any]:
    return [
        k.Input((5, 1)),
        dense(k, 4, 1),
        k.layers.LayerNormalization(),
        k.layers.GlobalMaxPooling1D(),
        dense(k, 1, 3),
    ]


def attention(k: Any) -> Job:
    def model_fn() -> Any:
        x = k.Input((5, 1))
        steps = dense(k, 4, 1)(x)
        mixed = k.layers.MultiHeadAttention(2, 2, kernel_initializer=kernel(k, 5))(steps, steps)
        model = k.Model(x, dense(k, 1, 3)(k.layers.GlobalAveragePooling1D()(mixed)))
        model.compile(slow(k), "mse")
        return model

    return Job(model_fn, rows(STEPS, Y))


def unfrozen(k: Any) -> Job:
    def script(session: Any) -> None:
        with session.scope():
            session.model.layers[0].trainable = False
            session.model.compile(k.optimizers.Adam(0.02), "mse")
        session.fit(rows(X, Y), epochs=2)
        session.tell("frozen", session.model.get_weights()[0])
        with session.scope():
            session.model.layers[0].trainable = True
            session.model.compile(sgd(k), "mae")
        session.fit(rows(X, Y), epochs=3)

    exact = ("iterations", "frozen")
    return Job(net(k), dict, script=script, exact=exact, falls=False)


LAYERS = (
    Feature("BatchNormalization, moving statistics", batch_statistics),
    Feature("BatchNormalization, synchronized", layered(synchronized)),
    Feature("Dropout, own masks and reproducible", dropout),
    Feature("LSTM with masks", layered(recurrent("LSTM"), TOKENS)),
    Feature("GRU with masks", layered(recurrent("GRU"), TOKENS)),
    Feature("Embedding", layered(embedding, TOKENS)),
    Feature("SpectralNormalization", layered(spectral)),
    Feature("own layer that counts its steps", layered(counting)),
    Feature("convolution and pooling", layered(convolution, STEPS)),
    Feature("LayerNormalization", layered(normalized, STEPS)),
    Feature("attention", attention),
    Feature("layer frozen, then trained", unfrozen),
)
