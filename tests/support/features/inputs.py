"""Everything that `fit` takes as data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from jobs import Feature, Job, Outcome, without
from parts import (
    BATCH,
    IDS,
    ROW_WEIGHTS,
    ROWS,
    VALIDATION,
    VALIDATION_BATCH,
    X,
    Y,
    batches_class,
    dataset,
    dense,
    generator,
    in_order,
    kernel,
    net,
    random,
    rows,
    sequential,
    sgd,
    times_seen,
)

WORDS = np.array(["ant", "bee", "cat", "dog"])[np.random.default_rng(0).integers(0, 4, (ROWS, 2))]
DENSE = "must be dense numbers under TPU rules"
LENGTHS = np.random.default_rng(1).integers(1, 5, ROWS)


def simple(data: Any, arguments: Any = dict, expected: Any = None) -> Any:
    """The small net on this data."""

    def make(k: Any) -> Job:
        model = net(k, lambda: {"metrics": ["mae"]})
        return Job(model, data, arguments, expected=expected)

    return make


def unknown_size() -> tf.data.Dataset:
    return dataset(X, Y).filter(lambda x, y: True)


def counted(data: Any, arguments: Any = dict) -> Any:
    """Row numbers as labels, and a metric that tells whether each was seen once an epoch."""

    def make(k: Any) -> Job:
        def compiled() -> dict[str, Any]:
            return {"optimizer": k.optimizers.SGD(1e-6), "metrics": [times_seen(k)]}

        def expected(_plain: Outcome, _replicas: int) -> Outcome:
            return {"history/repeats": np.zeros(3)}

        return Job(
            net(k, compiled),
            lambda: data(k),
            lambda: {"epochs": 3, **arguments()},
            expected=expected,
            exact=("history/repeats",),
            falls=False,
        )

    return make


def shuffled(_k: Any) -> tuple[Any, ...]:
    made = tf.data.Dataset.from_tensor_slices((X, IDS))
    return (made.shuffle(ROWS).batch(BATCH),)


def indexed(k: Any) -> Job:
    model = net(k, lambda: {"metrics": ["mae"]})
    return Job(model, lambda: (batches_class(k)(X, Y),))


def indexed_with_weights(k: Any) -> Job:
    return Job(net(k), lambda: (batches_class(k)(X, Y, ROW_WEIGHTS),))


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy of `array` at an address that TensorFlow takes without a copy."""
    raw = np.zeros(array.nbytes + 64, "uint8")
    start = -raw.ctypes.data % 64
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def not_written_to(k: Any) -> Job:
    x, y = aligned(random(32, 3)), aligned(random(32, 1, seed=1))
    before = x.copy(), y.copy()

    def run(session: Any) -> None:
        x[...], y[...] = before
        session.fit(lambda: (batches_class(k)(x, y, batch=8),), epochs=3)
        session.tell("x", x)
        session.tell("y", y)

    def expected(plain: Outcome, _replicas: int) -> Outcome:
        return {**plain, "x": before[0], "y": before[1]}

    return Job(net(k), dict, script=run, expected=expected, exact=("x", "y", "iterations"))


def dict_input(k: Any) -> Job:
    def model_fn() -> Any:
        a, b = k.Input((3,), name="a"), k.Input((1,), name="b")
        joined = k.layers.Concatenate()([a, b])
        outputs = {"p": dense(k, 1, 1, name="p")(joined), "q": dense(k, 2, 2, name="q")(joined)}
        model = k.Model({"a": a, "b": b}, outputs)
        model.compile(sgd(k), {"p": "mse", "q": "mae"}, metrics={"q": ["mse"]})
        return model

    return Job(model_fn, rows({"a": X, "b": Y}, {"p": Y, "q": X[:, :2]}))


def nested_input(k: Any) -> Job:
    class Nested(k.Model):
        """Takes (a, {"b": b}) and gives (p, q)."""

        def __init__(self) -> None:
            super().__init__()
            self.p, self.q = dense(k, 1, 1), dense(k, 2, 2)

        def call(self, inputs: Any) -> Any:
            a, rest = inputs
            joined = tf.concat([a, rest["b"]], axis=-1)
            return self.p(joined), self.q(joined)

    def model_fn() -> Any:
        model = Nested()
        model.compile(sgd(k), ["mse", "mae"])
        return model

    return Job(model_fn, rows((X, {"b": Y}), (Y, X[:, :2])))


def ragged_input(k: Any) -> Job:
    class MeanOfTokens(k.Model):
        def __init__(self) -> None:
            super().__init__()
            self.table = k.layers.Embedding(9, 3, embeddings_initializer=kernel(k, 1))
            self.out = dense(k, 1, 2)

        def call(self, tokens: Any) -> Any:
            lengths = tokens.row_lengths()
            mask = tf.cast(tf.sequence_mask(lengths), "float32")[..., None]
            total = tf.reduce_sum(self.table(tokens.to_tensor()) * mask, axis=1)
            return self.out(total / tf.cast(lengths, "float32")[:, None])

    def model_fn() -> Any:
        model = MeanOfTokens()
        model.compile(sgd(k), "mse")
        return model

    def data() -> tuple[Any, ...]:
        numbers = np.random.default_rng(2).integers(0, 9, LENGTHS.sum())
        return (dataset(tf.RaggedTensor.from_row_lengths(numbers, LENGTHS), Y),)

    return Job(model_fn, data)


def sparse_input(k: Any) -> Job:
    def layers() -> list[Any]:
        return [k.Input((6,), sparse=True), dense(k, 3, 1, "tanh"), dense(k, 1, 2)]

    def data() -> tuple[Any, ...]:
        full = random(ROWS, 6) * (random(ROWS, 6, seed=7) > 0.5)
        return (dataset(tf.sparse.from_dense(full), Y),)

    return Job(sequential(k, layers, lambda: {"optimizer": sgd(k), "loss": "mse"}), data)


def text_input(k: Any) -> Job:
    def model_fn() -> Any:
        words = k.Input((2,), dtype="string")
        numbers = k.layers.StringLookup(vocabulary=["ant", "bee", "cat"])(words)
        table = k.layers.Embedding(4, 3, embeddings_initializer=kernel(k, 1))(numbers)
        model = k.Model(words, dense(k, 1, 2)(k.layers.Flatten()(table)))
        model.compile(sgd(k), "mse")
        return model

    return Job(model_fn, lambda: (dataset(tf.constant(WORDS), Y),))


def adapted(k: Any) -> Job:
    def layers() -> list[Any]:
        scaling = k.layers.Normalization()
        scaling.adapt(X * 3 + 1)
        return [k.Input((3,)), scaling, dense(k, 4, 1, "tanh"), dense(k, 1, 2)]

    model = sequential(k, layers, lambda: {"optimizer": sgd(k), "loss": "mse"})
    return Job(model, rows(X * 3 + 1, Y))


INPUTS = (
    Feature("arrays", simple(lambda: (X, Y), in_order())),
    Feature("arrays, batch_size left out", simple(lambda: (X, Y))),
    Feature(
        "arrays of float64 and whole numbers",
        simple(lambda: (X.astype("float64"), (Y > 0).astype("int64")), in_order()),
    ),
    Feature("tensors", simple(lambda: (tf.constant(X), tf.constant(Y)), in_order())),
    Feature("dict inputs and outputs", dict_input),
    Feature("nested inputs and outputs", nested_input),
    Feature("dataset", simple(rows(X, Y))),
    Feature(
        "dataset of unknown size",
        simple(
            # Keras takes one more optimizer step, on no data, where data of unknown size ends.
            lambda: (unknown_size(),),
            expected=without("optimizer", "iterations"),
        ),
    ),
    Feature(
        "endless dataset, steps_per_epoch",
        simple(lambda: (dataset(X, Y).repeat(),), lambda: {"steps_per_epoch": 4}),
    ),
    Feature(
        "steps_per_epoch, epochs go on in the data",
        simple(lambda: (dataset(X, Y).repeat(3),), lambda: {"steps_per_epoch": 3, "epochs": 4}),
    ),
    Feature("shuffled dataset, each row once an epoch", counted(shuffled)),
    Feature(
        "shuffled arrays, each row once an epoch",
        counted(lambda k: (X, IDS), lambda: {"batch_size": BATCH, "shuffle": True}),
    ),
    Feature("PyDataset", indexed),
    Feature("PyDataset with sample weights", indexed_with_weights),
    Feature(
        "PyDataset, each row once an epoch",
        counted(lambda k: (batches_class(k)(X, IDS),), lambda: {"shuffle": True}),
    ),
    Feature("PyDataset, the user's arrays stay", not_written_to),
    Feature("generator", simple(lambda: (generator(X, Y),), lambda: {"steps_per_epoch": 4})),
    Feature(
        "generator, no row lost",
        counted(lambda k: (generator(X, IDS),), lambda: {"steps_per_epoch": 4}),
    ),
    Feature("ragged input", ragged_input, refused_on_tpu=DENSE),
    Feature("sparse input", sparse_input, refused_on_tpu=DENSE),
    Feature("text with StringLookup", text_input, refused_on_tpu=DENSE),
    Feature("Normalization after adapt", adapted),
    Feature(
        "validation_data, arrays",
        simple(lambda: (X, Y), in_order(validation_data=(X[:BATCH], Y[:BATCH]))),
    ),
    Feature(
        "validation_data, a dataset",
        simple(
            rows(X, Y),
            lambda: {
                "validation_data": dataset(X[:VALIDATION], Y[:VALIDATION], batch=VALIDATION_BATCH)
            },
        ),
    ),
    Feature("validation_split", simple(lambda: (X, Y), in_order(validation_split=0.25))),
    Feature(
        "validation_steps and validation_freq",
        simple(
            rows(X, Y),
            lambda: {
                "validation_data": dataset(X, Y, batch=4).repeat(),
                "validation_steps": 2,
                "validation_freq": 2,
            },
        ),
    ),
    Feature("initial_epoch", simple(rows(X, Y), lambda: {"initial_epoch": 3})),
)
