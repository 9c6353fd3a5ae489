"""A `tf.data.Dataset` as a graph: to carry it over a late start, and to agree on its shuffling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from autostrategy.errors import TrainingError

# Each takes `seed` and `seed2` as inputs; both 0 means "draw one".
_SEEDED = {
    "ShuffleDatasetV3": (2, 3),
    "ShuffleAndRepeatDatasetV2": (2, 3),
    "RandomDatasetV2": (0, 1),
}


_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A dataset outside TensorFlow's devices.

    `original` is kept because Python functions in the graph live as long as it.
    """

    graph: bytes
    spec: Any
    original: tf.data.Dataset


def pack(dataset: tf.data.Dataset) -> Packed:
    """The dataset as a graph.

    Raises:
        TrainingError: the dataset holds something that a graph cannot, or 2 GB
            and more of data.
    """
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=1,  # keep going: state such as a shuffle buffer starts anew
            strip_device_assignment=True,
        )
    except tf.errors.OpError as error:
        raise TrainingError(
            "A dataset for several workers must fit into a TensorFlow graph. Received: "
            f"{str(error).splitlines()[0][:200]}. Give arrays, or call autostrategy.fit before "
            "any other use of TensorFlow, for instance with `autostrategy run`."
        ) from None
    return Packed(graph=graph.numpy(), spec=dataset.element_spec, original=dataset)


def calls_python(packed: Packed) -> bool:
    """Whether the dataset calls Python functions, which only this process has."""
    graph = tf.compat.v1.GraphDef.FromString(packed.graph)
    return any(node.op in _PYTHON for body in _bodies(graph) for node in body)


def unpack(packed: Packed, *, seed: int | None = None) -> tf.data.Dataset:
    """The dataset, on the devices that there are now.

    Args:
        packed: from `pack`.
        seed: for every `shuffle` that was given none, so that all workers draw
            the same order; None leaves them as they are.
    """
    graph = tf.compat.v1.GraphDef.FromString(packed.graph)
    for body in _bodies(graph):
        nodes = {node.name: node for node in body}
        for node in body:
            node.device = ""
            if seed is not None and node.op in _SEEDED:
                _set_seed(node, nodes, seed)
    dataset = tf.data.experimental.from_variant(
        tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString()), packed.spec
    )
    dataset._autostrategy_original = packed.original  # keeps its Python functions alive
    cardinality = packed.original.cardinality()
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(cardinality))


def _bodies(graph: Any) -> Iterator[list[Any]]:
    yield list(graph.node)
    for function in graph.library.function:
        yield list(function.node_def)


def _set_seed(node: Any, nodes: dict[str, Any], seed: int) -> None:
    names = [node.input[i].split(":")[0] for i in _SEEDED[node.op]]
    inputs = [nodes[name] for name in names if name in nodes and nodes[name].op == "Const"]
    if [int(tf.make_ndarray(each.attr["value"].tensor)) for each in inputs] == [0, 0]:
        for each, value in zip(inputs, (seed, seed + 1), strict=True):
            each.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))
