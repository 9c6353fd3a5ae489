"""Everything that `keras.Model.fit` takes, on one device and on three replicas."""

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from keras import ops
from runs import (
    BATCH,
    ROWS,
    assert_equal,
    counts,
    dataset,
    dense,
    fit,
    kernel,
    random,
    train,
    train_stock,
)

COUNTS = counts(2)
X, Y = random(ROWS, 3), random(ROWS, 1, seed=1)
WEIGHTS = np.random.default_rng(3).uniform(0, 2, ROWS).astype("float32")


def model_fn():
    model = keras.Sequential([keras.Input((3,)), dense(4, 1, "tanh"), dense(1, 2)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model


class Batches(keras.utils.PyDataset):
    """Batches that are views of one array."""

    def __init__(self, *arrays, batch=BATCH, **keywords):
        super().__init__(**keywords)
        self.arrays, self.batch = arrays, batch
        self.begun = self.ended = 0

    def __len__(self):
        return -(-len(self.arrays[0]) // self.batch)

    def __getitem__(self, index):
        rows = slice(index * self.batch, (index + 1) * self.batch)
        return tuple(array[rows] for array in self.arrays)

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1


def generator(*arrays, passes=5, batch=BATCH):
    for _ in range(passes):
        for start in range(0, len(arrays[0]), batch):
            yield tuple(array[start : start + batch] for array in arrays)


def unknown_size():
    return dataset(X, Y).filter(lambda x, y: True)


IN_ORDER = {"batch_size": BATCH, "shuffle": False}
SOURCES = {
    "arrays": (lambda: (X, Y), IN_ORDER),
    "arrays without batch_size": (lambda: (X, Y), {"shuffle": False}),
    "tensors": (lambda: (tf.constant(X), tf.constant(Y)), IN_ORDER),
    "pandas": (
        lambda: (pandas.DataFrame(X, columns=list("abc")), pandas.Series(Y[:, 0])),
        IN_ORDER,
    ),
    "float64 and whole numbers": (
        lambda: (X.astype("float64"), (Y > 0).astype("int64")),
        IN_ORDER,
    ),
    "dataset": (lambda: (dataset(X, Y),), {}),
    "dataset with weights": (lambda: (dataset(X, Y, WEIGHTS),), {}),
    "dataset of unknown size": (lambda: (unknown_size(),), {}),
    "dataset without end": (lambda: (dataset(X, Y).repeat(),), {"steps_per_epoch": 3}),
    "dataset, fewer steps": (lambda: (dataset(X, Y),), {"steps_per_epoch": 2}),
    "unknown size, fewer steps": (lambda: (unknown_size().repeat(),), {"steps_per_epoch": 3}),
    "arrays, fewer steps": (lambda: (X, Y), {"steps_per_epoch": 3, **IN_ORDER}),
    "PyDataset": (lambda: (Batches(X, Y),), {"shuffle": False}),
    "PyDataset, 2 threads": (lambda: (Batches(X, Y, workers=2),), {"shuffle": False}),
    "PyDataset with weights": (lambda: (Batches(X, Y, WEIGHTS),), {"shuffle": False}),
    "PyDataset, fewer steps": (
        lambda: (Batches(X, Y),),
        {"shuffle": False, "steps_per_epoch": 2},
    ),
    "generator": (lambda: (generator(X, Y),), {"steps_per_epoch": 4}),
    "generator, one pass": (lambda: (generator(X, Y),), {"epochs": 1}),
    "class weights": (
        lambda: (X, (Y[:, 0] > 0).astype("int64")),
        {"class_weight": {0: 1.0, 1: 3.0}, **IN_ORDER},
    ),
    "sample weights": (lambda: (X, Y), {"sample_weight": WEIGHTS, **IN_ORDER}),
    "validation_split": (lambda: (X, Y), {"validation_split": 0.3, **IN_ORDER}),
    "validation arrays": (lambda: (X, Y), {"validation_data": (X[:7], Y[:7]), **IN_ORDER}),
    "validation with weights": (
        lambda: (X, Y),
        {"validation_data": (X[:7], Y[:7], WEIGHTS[:7]), **IN_ORDER},
    ),
    "validation dataset": (
        lambda: (X, Y),
        {"validation_data": lambda: dataset(X[:13], Y[:13], batch=3), **IN_ORDER},
    ),
    "validation steps": (
        lambda: (X, Y),
        {
            "validation_data": lambda: dataset(X, Y, batch=4).repeat(),
            "validation_steps": 2,
            "validation_freq": 2,
            **IN_ORDER,
        },
    ),
    "validation PyDataset": (
        lambda: (dataset(X, Y),),
        {"validation_data": lambda: Batches(X[:13], Y[:13], batch=3), "validation_freq": [1, 4]},
    ),
    "validation batch_size": (
        lambda: (dataset(X, Y),),
        {"validation_data": (X[:7], Y[:7]), "validation_batch_size": 3},
    ),
    "initial_epoch": (lambda: (dataset(X, Y),), {"initial_epoch": 3}),
}


# Keras takes one more optimizer step, on no data, where data of unknown size ends.
EXTRA_STEP_IN_KERAS = ("dataset of unknown size", "generator, one pass")


@pytest.mark.filterwarnings("ignore:Your input ran out of data", "ignore:The data ended after")
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_trains_as_in_keras(name):
    data, arguments = SOURCES[name]
    arguments = {"shuffle": False, **arguments}
    stock = train_stock(model_fn, data, **arguments)

    one = train(model_fn, data, 1, **arguments)

    assert_equal(one, stock, slots=name not in EXTRA_STEP_IN_KERAS)
    for replicas in COUNTS:
        assert_equal(train(model_fn, data, replicas, **arguments), one)


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # by TensorFlow, of its own
def test_data_shorter_than_steps_per_epoch_trains_on_what_there_is_and_says_so():
    arguments = {"steps_per_epoch": 6, "epochs": 2, "batch_size": BATCH, "shuffle": False}
    with pytest.warns(UserWarning, match="ran out of data"):
        stock = train_stock(model_fn, lambda: (X, Y), **arguments)

    for replicas in (1, 2):
        with pytest.warns(UserWarning, match=r"ended after \d of 6 steps"):
            ours = train(model_fn, lambda: (X, Y), replicas, **arguments)

        assert_equal(ours, stock)


def test_a_py_dataset_gets_its_epoch_hooks_and_every_index_once():
    for replicas in (1, 2):
        data = Batches(X, Y)

        fit(model_fn, data, replicas=replicas, epochs=3)

        assert data.begun == data.ended == 3


# Nested and special inputs: a model, its data, and whether stock Keras is right on it.


def dict_model():
    a, b = keras.Input((3,), name="a"), keras.Input((1,), name="b")
    joined = keras.layers.Concatenate()([a, b])
    outputs = {"p": dense(1, 1, name="p")(joined), "q": dense(2, 2, name="q")(joined)}
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile(keras.optimizers.SGD(0.05), {"p": "mse", "q": "mae"}, metrics={"q": ["mse"]})
    return model


class Nested(keras.Model):
    """Takes (a, {"b": b}) and gives (p, q)."""

    def __init__(self):
        super().__init__()
        self.p, self.q = dense(1, 1), dense(2, 2)

    def call(self, inputs):
        a, rest = inputs
        joined = ops.concatenate([a, rest["b"]], axis=-1)
        return self.p(joined), self.q(joined)


def nested_model():
    model = Nested()
    model.compile(keras.optimizers.SGD(0.05), ["mse", "mae"])
    return model


class Ragged(keras.Model):
    """The mean embedding of a row's tokens."""

    def __init__(self):
        super().__init__()
        self.table, self.out = (
            keras.layers.Embedding(9, 3, embeddings_initializer=kernel(1)),
            dense(1, 2),
        )

    def call(self, tokens):
        lengths = tf.cast(tokens.row_lengths(), "float32")[:, None]
        dense_tokens = tokens.to_tensor()
        mask = tf.cast(tf.sequence_mask(tokens.row_lengths()), "float32")[..., None]
        total = tf.reduce_sum(self.table(dense_tokens) * mask, axis=1)
        return self.out(total / lengths)


def ragged_model():
    model = Ragged()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def sparse_model():
    model = keras.Sequential([keras.Input((6,), sparse=True), dense(3, 1, "tanh"), dense(1, 2)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def string_model():
    words = keras.Input((2,), dtype="string")
    numbers = keras.layers.StringLookup(vocabulary=["ant", "bee", "cat"])(words)
    table = keras.layers.Embedding(4, 3, embeddings_initializer=kernel(1))(numbers)
    model = keras.Model(words, dense(1, 2)(keras.layers.Flatten()(table)))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


WORDS = np.array(["ant", "bee", "cat", "dog"])[np.random.default_rng(0).integers(0, 4, (ROWS, 2))]
_lengths = np.random.default_rng(1).integers(1, 5, ROWS)


def ragged_tokens():
    numbers = np.random.default_rng(2).integers(0, 9, _lengths.sum())
    return tf.RaggedTensor.from_row_lengths(numbers, _lengths)


def sparse_rows():
    rows = random(ROWS, 6) * (random(ROWS, 6, seed=7) > 0.5)
    return tf.sparse.from_dense(rows)


INPUTS = {
    "dict": (dict_model, lambda: ({"a": X, "b": Y}, {"p": Y, "q": X[:, :2]})),
    "nested": (nested_model, lambda: ((X, {"b": Y}), (Y, X[:, :2]))),
    "ragged": (ragged_model, lambda: (ragged_tokens(), Y)),
    "sparse": (sparse_model, lambda: (sparse_rows(), Y)),
    "string": (string_model, lambda: (tf.constant(WORDS), Y)),
}


@pytest.mark.parametrize("form", ["arrays", "dataset"])
@pytest.mark.parametrize("name", INPUTS)
def test_every_kind_of_input_trains_alike(name, form):
    make, arrays = INPUTS[name]
    data, arguments = arrays, {"batch_size": BATCH, "shuffle": False}
    if form == "dataset":
        data, arguments = (lambda: (dataset(*arrays()),)), {}
    stock = train_stock(make, data, **arguments)
    one = train(make, data, 1, **arguments)

    assert_equal(one, stock)
    for replicas in COUNTS:
        assert_equal(train(make, data, replicas, **arguments), one)


def aligned(array):
    """A copy of `array` at an address that TensorFlow takes without a copy."""
    raw = np.zeros(array.nbytes + 64, "uint8")
    start = -raw.ctypes.data % 64
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("form", ["PyDataset", "generator", "arrays", "dict generator"])
def test_the_users_arrays_are_not_written_to(form, replicas):
    x, y = aligned(random(32, 3)), aligned((random(32, 1, seed=1) > 0).astype("float32"))
    before = x.copy(), y.copy()

    def nested():
        for inputs, labels in generator(x, y, batch=8):
            yield {"a": inputs, "b": labels}, {"p": labels, "q": inputs[:, :2]}

    sources = {
        "PyDataset": (model_fn, (Batches(x, y),), {}),
        "generator": (model_fn, (generator(x, y, batch=8),), {"steps_per_epoch": 4}),
        "arrays": (model_fn, (x, y), {"batch_size": BATCH}),
        "dict generator": (dict_model, (nested(),), {"steps_per_epoch": 4}),
    }
    make, data, arguments = sources[form]

    fit(make, *data, replicas=replicas, epochs=4, **arguments)

    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(y, before[1])
