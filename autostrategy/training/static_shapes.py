"""Static shapes: under the rules of a TPU every replica's part of every batch has one shape.

XLA compiles a step for the shapes that it sees, so a last short batch must not
have a shape of its own. Its rows are shared out as ever, and each replica's
part is filled up to the full size with rows that are there already, so that
all values stay finite. `Share.real` says which rows count; `padding` makes
Keras heed it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from autostrategy.errors import TrainingError

_OVERSIZE = "Every batch must have at most {} rows under TPU rules, as the first has. Received: {}."


@dataclass(frozen=True, kw_only=True)
class StaticShapes:
    """`rows` of every replica in every batch, and what is done with a batch that has fewer.

    `filled` says that parts of a short batch are filled up. Where rows that
    only fill up would change a result, a short batch is given whole to every
    replica instead (as a batch with fewer rows than replicas is, see `share`),
    which is exact and is compiled a second time, for its own shape.
    """

    rows: int
    filled: bool


def require_multiple(global_batch_size: int, replicas: int) -> None:
    """Check that all replicas get the same number of rows.

    Raises:
        TrainingError: with the nearest sizes that work.
    """
    rest = global_batch_size % replicas
    if rest:
        below = global_batch_size - rest
        nearest = [size for size in (below, below + replicas) if size]
        raise TrainingError(
            f"global_batch_size must be a multiple of the {replicas} replicas. Received: "
            f"{global_batch_size}. Nearest that work: {', '.join(map(str, nearest))}."
        )


def require_dense(spec: Any) -> None:
    """Check that batches hold dense numbers, which is all that XLA takes.

    Raises:
        TrainingError: naming what to do instead.
    """
    ways_out = {
        tf.RaggedTensorSpec: "ragged rows. Pad them in the dataset: "
        "dataset.map(lambda x, y: (x.to_tensor(shape=[None, length]), y))",
        tf.SparseTensorSpec: "a sparse tensor. Make it dense in the dataset: "
        "dataset.map(lambda x, y: (tf.sparse.to_dense(x), y))",
    }
    for leaf in tf.nest.flatten(spec):
        way_out = ways_out.get(type(leaf))
        if way_out is None and getattr(leaf, "dtype", None) == tf.string:
            way_out = (
                "strings. Look them up before the model, in the dataset: "
                "dataset.map(lambda x, y: (lookup(x), y))"
            )
        if way_out is not None:
            raise TrainingError(
                f"Batches must be dense numbers under TPU rules. Received: {way_out}."
            )


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Errors of TensorFlow that come from breaking the rules, told as such.

    Raises:
        TrainingError: a batch is too large, or XLA cannot compile the step.
    """
    try:
        yield
    except tf.errors.OpError as error:
        text = str(error.message)
        oversize = re.search(_OVERSIZE.replace(".", r"\.").replace("{}", r"\d+"), text)
        if oversize:
            raise TrainingError(
                f"{oversize[0]} Give the dataset batches of one size: dataset.batch(size)."
            ) from None
        if "unsupported operations when trying to compile" in text:
            operations = dict.fromkeys(re.findall(r"No registered '(\w+)' OpKernel", text))
            raise TrainingError(
                "The step must consist of operations that XLA compiles. Received: "
                f"{', '.join(operations) or 'another one'}. Move them into the dataset, or compile "
                "the model with jit_compile=False where the strategy allows it."
            ) from None
        raise


def filled_part(
    element: Any,
    grab: Callable[[Any], Any],
    rows: Any,
    replica: int,
    replicas: int,
    most: int,
) -> tuple[Any, dict[str, tf.Tensor]]:
    """`most` rows for one replica, of which `real` says which count.

    Shares are those of `data`, but where a batch has fewer rows than replicas:
    the first replicas then get as many as they hold, so that rows stay together.

    Args:
        element: a global batch, or what `grab` takes.
        grab: from a part of an element to its rows.
        rows: of the global batch, an int or a scalar int32 tensor.
        replica, replicas: number of the replica, and of all.
        most: rows of each replica in a full batch.
    """
    rows = tf.cast(rows, tf.int32)
    size_allowed = most * replicas
    oversize = tf.debugging.Assert(
        rows <= size_allowed, [tf.strings.format(_OVERSIZE, (tf.constant(size_allowed), rows))]
    )
    with tf.control_dependencies([] if oversize is None else [oversize]):
        rows = tf.identity(rows)
    least, more = rows // replicas, rows % replicas
    scarce = rows < replicas
    start = tf.where(
        scarce, tf.minimum(replica * most, rows), replica * least + tf.minimum(replica, more)
    )
    size = tf.where(
        scarce,
        tf.clip_by_value(rows - replica * most, 0, most),
        least + tf.cast(replica < more, tf.int32),
    )
    places = tf.range(most)
    positions = tf.minimum(start + places % tf.maximum(size, 1), rows - 1)

    def filled(leaf: Any) -> Any:
        return tf.gather(leaf, positions) if tf.is_tensor(leaf) and leaf.shape.rank != 0 else leaf

    return grab(tf.nest.map_structure(filled, element)), {
        "rows": rows,
        "start": start,
        "weight": tf.cast(size, tf.float64) / tf.cast(rows, tf.float64),
        "fraction": tf.cast(tf.maximum(size, 1), tf.float64) / tf.cast(rows, tf.float64),
        "counted": tf.constant(True),
        "real": places < size,
    }
