"""The order of rows: each row once in an epoch, alike on any number of replicas."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from runs import fit

ROWS, BATCH, EPOCHS = 26, 8, 3


class Seen(keras.callbacks.Callback):
    """The rows of each epoch in the order of training, from a layer that writes them down."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])


def numbers_of(x, replicas, y=True, **arguments):
    """For each epoch the row numbers of each batch, sorted within the batch."""
    seen = Seen()
    pending = []

    class Loss(keras.losses.Loss):
        def call(self, y_true, y_pred):
            tf.py_function(lambda t: pending.append(t.numpy().ravel()), [y_true], [])
            return ops.square(y_true - y_pred)

    class Split(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rows = np.concatenate(pending).astype(int).tolist()
            pending.clear()
            seen.epochs[-1].append(sorted(set(rows)))

    def model_fn():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), Loss())
        return model

    data = (x, x) if y else (x,)
    fit(
        model_fn,
        *data,
        replicas=replicas,
        epochs=EPOCHS,
        callbacks=[seen, Split()],
        **arguments,
    )
    return seen.epochs


NUMBERS = np.arange(ROWS, dtype="float32")[:, None]
IN_ORDER = [list(range(start, min(start + BATCH, ROWS))) for start in range(0, ROWS, BATCH)]


@pytest.mark.parametrize("replicas", [1, 4])
def test_without_shuffling_batches_come_in_order(replicas):
    assert numbers_of(NUMBERS, replicas, batch_size=BATCH, shuffle=False) == [IN_ORDER] * EPOCHS


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_shuffled_epochs_hold_each_row_once_in_another_order_alike_on_all_counts(shuffle):
    orders = []
    for replicas in (1, 4):
        keras.utils.set_random_seed(7)
        orders.append(numbers_of(NUMBERS, replicas, batch_size=BATCH, shuffle=shuffle))
        for epoch in orders[-1]:
            assert sorted(itertools.chain(*epoch)) == list(range(ROWS))

    assert orders[0] == orders[1]
    if shuffle is True:
        assert orders[0][0] != orders[0][1] != orders[0][2]
        assert orders[0][0] != IN_ORDER


def test_another_seed_gives_another_order():
    keras.utils.set_random_seed(1)
    one = numbers_of(NUMBERS, 1, batch_size=BATCH)
    keras.utils.set_random_seed(2)

    assert numbers_of(NUMBERS, 1, batch_size=BATCH) != one


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return len(IN_ORDER)

    def __getitem__(self, index):
        rows = NUMBERS[IN_ORDER[index]]
        return rows, rows


@pytest.mark.parametrize("workers", [1, 2])
def test_a_py_datasets_batches_are_shuffled_alike_on_all_counts(workers):
    orders = []
    for replicas in (1, 4):
        keras.utils.set_random_seed(7)
        orders.append(numbers_of(Batches(workers=workers), replicas, y=False))
        for epoch in orders[-1]:
            assert sorted(epoch) == IN_ORDER

    assert orders[0] == orders[1]
    assert len({str(epoch) for epoch in orders[0]}) > 1
