"""The two nets that the benchmarks train, and their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NETS = ("dense", "convolutional")
CLASSES = 10
_PIXELS = 784
_SHAPES = {"dense": (_PIXELS,), "convolutional": (28, 28, 1)}


def arrays(net: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random rows of shape [rows, ...] float32, and labels of shape [rows] int64."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, *_SHAPES[net]), dtype="float32")
    return x, generator.integers(0, CLASSES, rows)


def write_records(path: Path, rows: int) -> None:
    """The same rows as a file: float32 pixels, then the label as a float32, row after row."""
    x, y = arrays("dense", rows)
    np.concatenate([x, y[:, None].astype("float32")], axis=1).tofile(path)


def read_records(path: str, net: str, batch: int) -> Any:
    """A dataset function for one worker: its share of the file, shuffled, for ever, in batches."""
    import tensorflow as tf

    def parsed(records: Any) -> tuple[Any, Any]:
        numbers = tf.io.decode_raw(records, tf.float32)
        x = tf.reshape(numbers[:, :_PIXELS], (batch, *_SHAPES[net]))
        return x, tf.cast(numbers[:, _PIXELS], tf.int64)

    def dataset_of(context: Any) -> tf.data.Dataset:
        size = 4 * (_PIXELS + 1)
        rows = Path(path).stat().st_size // size
        dataset = tf.data.FixedLengthRecordDataset(path, size)
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        dataset = dataset.shuffle(rows).repeat().batch(batch, drop_remainder=True)
        return dataset.map(parsed).prefetch(tf.data.AUTOTUNE)

    return dataset_of


def model(keras: Any, net: str, *, steps_per_execution: int = 1) -> Any:
    """The compiled net, made with the module `keras`: Keras 3 or tf_keras."""
    layers = keras.layers
    if net == "dense":
        body = [
            keras.Input(_SHAPES[net]),
            layers.Dense(128, "relu"),
            layers.Dense(64, "relu"),
        ]
    else:
        body = [
            keras.Input(_SHAPES[net]),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
        ]
    made = keras.Sequential([*body, layers.Dense(CLASSES)])
    made.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    return made
