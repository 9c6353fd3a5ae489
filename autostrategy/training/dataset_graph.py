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
    return any(node.op in _PYTHON for body in _bodies(_parsed(packed.graph)) for node in body)


def writes_files(packed: Packed) -> bool:
    """Whether the dataset caches in a file, which two processes must not write."""
    for body in _bodies(_parsed(packed.graph)):
        nodes = {node.name: node for node in body}
        for node in body:
            if node.op in ("CacheDataset", "CacheDatasetV2"):
                name: Any = nodes.get(node.input[1].split(":")[0])
                known = name is not None and name.op == "Const"
                if not known or tf.make_ndarray(name.attr["value"].tensor).item() != b"":
                    return True
    return False


def of_epoch(packed: Packed, epoch: int) -> bytes:
    """The graph with every order that changes from pass to pass as in a later pass.

    A dataset that is made anew begins with the order of its first pass.
    """
    graph = _parsed(packed.graph)
    for body in _bodies(graph):
        nodes = {node.name: node for node in body}
        for node in body:
            again = node.attr["reshuffle_each_iteration"].b if node.op in _SEEDED else False
            seeds = _seeds(node, nodes) if again else []
            if seeds and [number for _, number in seeds] != [0, 0]:
                last, number = seeds[-1]
                _write(last, number + epoch)
    return graph.SerializeToString()


def _parsed(graph: bytes) -> Any:
    return tf.compat.v1.GraphDef.FromString(graph)


def unpack(packed: Packed, *, seed: int | None = None) -> tf.data.Dataset:
    """The dataset, on the devices that there are now.

    Args:
        packed: from `pack`.
        seed: for every `shuffle` that was given none, so that all workers draw
            the same order; None leaves them as they are.
    """
    graph = _parsed(packed.graph)
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
    seeds = _seeds(node, nodes)
    if [number for _, number in seeds] == [0, 0]:
        for (each, _), value in zip(seeds, (seed, seed + 1), strict=True):
            _write(each, value)


def _seeds(node: Any, nodes: dict[str, Any]) -> list[tuple[Any, int]]:
    """The constants that are an operation's two seeds, with their values."""
    names = [node.input[i].split(":")[0] for i in _SEEDED[node.op]]
    inputs = [nodes[name] for name in names if name in nodes and nodes[name].op == "Const"]
    return [(each, int(tf.make_ndarray(each.attr["value"].tensor))) for each in inputs]


def _write(constant: Any, value: int) -> None:
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))
