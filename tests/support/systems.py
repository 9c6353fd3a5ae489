"""The systems that are compared: each trains a job under a strategy, in this process.

A session is one job's run: a model, and what came out so far. `Plain` is one
device without any strategy, whose numbers the others are held to.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flavours import number, optimizers_of, variables_of
from jobs import Job, Outcome

SYSTEMS = ("autostrategy", "keras", "tf_keras")
STRATEGIES = (
    "one_device",
    "mirrored",
    "multi_worker_mirrored",
    "central_storage",
    "parameter_server",
    "tpu_stand_in",
)
CLUSTERS = ("multi_worker_mirrored", "parameter_server")
REPLICAS = {"one_device": 1, "parameter_server": 1, "plain": 1}  # the others have two
TWO = ["CPU:0", "CPU:1"]


def arguments_for(strategy: str) -> dict[str, Any]:
    """What `autostrategy.fit` is given beside the user's arguments, for a column of the table."""
    return {
        "one_device": {"strategy": "one_device", "devices": ["CPU:0"]},
        "mirrored": {"strategy": "mirrored", "devices": TWO},
        "multi_worker_mirrored": {"strategy": "auto"},
        "central_storage": {"strategy": "central_storage", "devices": TWO},
        "parameter_server": {"strategy": "auto"},
        "tpu_stand_in": {"strategy": "tpu", "devices": TWO},
    }[strategy]


def keras_of(system: str) -> Any:
    """The module `keras` or `tf_keras`."""
    return importlib.import_module("tf_keras" if system == "tf_keras" else "keras")


def task_index() -> int:
    """Of this process in its cluster; 0 without a cluster."""
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    return int(task.get("index", 0))


class Session:
    """One job's run on one plain device, and what the other sessions share with it."""

    def __init__(self, k: Any, job: Job, folder: pathlib.Path, strategy: str = "plain") -> None:
        self.k, self.job, self.folder, self.strategy = k, job, folder, strategy
        self.model_fn: Callable[[], Any] = job.model
        self.replicas = REPLICAS.get(strategy, 2)
        self.is_chief = task_index() == 0
        self.outcome: Outcome = {}
        self._model: Any = None
        self.begin()

    def begin(self) -> None:
        """Forget the model and seed everything, as at the start of a process."""
        self.k.backend.clear_session()
        self.k.utils.set_random_seed(0)
        random.seed(0)
        self._model = None

    @property
    def model(self) -> Any:
        """The job's model, made in the strategy's scope when it is first asked for."""
        if self._model is None:
            with self.scope():
                self._model = self.model_fn()
        return self._model

    @model.setter
    def model(self, model: Any) -> None:
        self._model = model

    def scope(self) -> Any:
        """Where models are made and compiled."""
        return contextlib.nullcontext()

    def tell(self, name: str, value: Any) -> None:
        """Add to what came out; what is told again is added at the end."""
        if hasattr(value, "numpy") or hasattr(value, "read_value"):
            value = number(value)
        array = np.asarray(value)
        if name in self.outcome and name.startswith("history/"):
            array = np.concatenate([self.outcome[name], array])
        self.outcome[name] = array

    def tell_structure(self, name: str, value: Any) -> None:
        """Each array of nested dictionaries and sequences."""
        if isinstance(value, dict):
            for key, part in value.items():
                self.tell_structure(f"{name}/{key}", part)
        elif isinstance(value, (list, tuple)):
            for index, part in enumerate(value):
                self.tell_structure(f"{name}/{index}", part)
        else:
            self.tell(name, value)

    def fit(self, data: Callable[[], tuple[Any, ...]], **arguments: Any) -> None:
        """Train, with the arguments of `keras.Model.fit`; by default five epochs in order."""
        arguments = {"epochs": 5, "verbose": 0, "shuffle": False, **arguments}
        history = self._fit(data, arguments)
        for name, values in history.history.items():
            self.tell(f"history/{name}", np.asarray(values, "float64"))

    def evaluate(self, data: Callable[[], tuple[Any, ...]], **arguments: Any) -> None:
        """Loss and metrics of the data."""
        values = self._evaluate(data, {"verbose": 0, "return_dict": True, **arguments})
        self.tell_structure("evaluate", values)

    def predict(self, data: Callable[[], tuple[Any, ...]], **arguments: Any) -> None:
        """Outputs for all rows."""
        self.tell_structure("predict", self._predict(data, {"verbose": 0, **arguments}))

    def _fit(self, data: Any, arguments: dict[str, Any]) -> Any:
        return self.model.fit(*data(), **arguments)

    def _evaluate(self, data: Any, arguments: dict[str, Any]) -> Any:
        return self.model.evaluate(*data(), **arguments)

    def _predict(self, data: Any, arguments: dict[str, Any]) -> Any:
        return self.model.predict(*data(), **arguments)

    def own_path(self, name: str) -> str:
        """A file that this task alone writes."""
        return str(self.folder / f"task{task_index()}-{name}")

    def shared_path(self, name: str) -> str:
        """A file that one task of the system writes for all."""
        return str(self.folder / name)

    def when_written(self, path: str) -> str:
        """`path`, as soon as the task that writes it has done so."""
        size, limit = -1, time.monotonic() + 20
        while time.monotonic() < limit:
            now = os.path.getsize(path) if os.path.exists(path) else -1
            if self.is_chief or (now > 0 and now == size):
                break
            size = now
            time.sleep(0.3)
        return path

    def saved(self) -> str:
        """Save the model as this system's users do; the path of a file that this task can load."""
        path = self.own_path("model.keras")  # TensorFlow wants every worker to save, apart
        self.model.save(path)
        return path

    def finish(self) -> Outcome:
        """What came out, with the weights and all numbers of the optimizers."""
        for index, array in enumerate(self.model.get_weights()):
            self.tell(f"weight/{index}", array)
        position = 0
        for optimizer in optimizers_of(self.k, self.model):
            for variable in variables_of(optimizer):
                self.tell(f"optimizer/{position}", variable)
                position += 1
        if getattr(self.model, "optimizer", None) is not None:
            self.tell("iterations", self.model.optimizer.iterations)
        return self.outcome


Plain = Session


class Stock(Session):
    """`fit` of Keras 3 or tf_keras, with the model made in `strategy.scope()`."""

    def __init__(self, k: Any, job: Job, folder: pathlib.Path, strategy: str) -> None:
        self.tf_strategy = stock_strategy(strategy)
        super().__init__(k, job, folder, strategy)

    def scope(self) -> Any:
        return self.tf_strategy.scope()

    def begin(self) -> None:
        super().begin()
        if self.strategy == "tpu_stand_in":
            make = self.job.model

            def compiled_by_xla() -> Any:
                model = make()
                _compile_with_xla(model)
                return model

            self.model_fn = compiled_by_xla

    def _fit(self, data: Any, arguments: dict[str, Any]) -> Any:
        # A model made outside knows of no strategy, and would train without any.
        knows = self.model.distribute_strategy is self.tf_strategy
        with contextlib.nullcontext() if knows else self.scope():
            if self.strategy == "parameter_server":
                return self.model.fit(**_for_parameter_servers(data(), arguments))
            return super()._fit(data, arguments)


class AutoStrategy(Session):
    """`autostrategy.fit`, and its `Trainer` for what is asked afterwards."""

    history: Any = None

    def _fit(self, data: Any, arguments: dict[str, Any]) -> Any:
        import autostrategy

        model = self.model_fn if self._model is None else self._model
        self.history = autostrategy.fit(
            model, *data(), batch_scaling="off", **arguments_for(self.strategy), **arguments
        )
        self._model = self.history.model
        return self.history

    def _trainer(self) -> Any:
        import autostrategy

        return autostrategy.Trainer(self.model, self.history.plan, batch_scaling="off")

    def _evaluate(self, data: Any, arguments: dict[str, Any]) -> Any:
        return self._trainer().evaluate(*data(), **arguments)

    def _predict(self, data: Any, arguments: dict[str, Any]) -> Any:
        return self._trainer().predict(*data(), **arguments)

    def saved(self) -> str:
        path = self.shared_path("model.keras")
        self._trainer().save(path)
        return self.when_written(path)


_strategies: dict[str, Any] = {}


def stock_strategy(strategy: str) -> Any:
    """TensorFlow's strategy, one for the life of the process."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver
    makers: dict[str, Callable[[], Any]] = {
        "one_device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
        "mirrored": lambda: tf.distribute.MirroredStrategy(TWO),
        "multi_worker_mirrored": lambda: tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=resolver()
        ),
        "central_storage": lambda: tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=TWO, parameter_device="CPU:0"
        ),
        "parameter_server": lambda: tf.distribute.ParameterServerStrategy(resolver()),
        "tpu_stand_in": lambda: tf.distribute.MirroredStrategy(TWO),
    }
    if strategy not in _strategies:
        _strategies[strategy] = makers[strategy]()
    return _strategies[strategy]


def _compile_with_xla(model: Any) -> None:
    """As `compile(jit_compile=True)` would, where nothing else was asked for."""
    if getattr(model, "run_eagerly", False):
        return
    if hasattr(model, "_jit_compile"):  # tf_keras
        model._jit_compile = True
    else:
        model.jit_compile = True


def _for_parameter_servers(data: tuple[Any, ...], arguments: dict[str, Any]) -> dict[str, Any]:
    """What `fit` takes there: a dataset without end and `steps_per_epoch`, as the guides say."""
    import tensorflow as tf

    arguments = dict(arguments)
    if all(isinstance(each, (np.ndarray, tf.Tensor)) for each in data):
        weights = arguments.pop("sample_weight", None)
        arrays = (*data, weights) if weights is not None else data
        size = arguments.pop("batch_size", 32)
        made = tf.data.Dataset.from_tensor_slices(arrays)
        if arguments.pop("shuffle"):
            made = made.shuffle(len(arrays[0]))
        data = (made.batch(size),)
    (x, *_) = data
    if isinstance(x, tf.data.Dataset) and "steps_per_epoch" not in arguments:
        steps = int(x.cardinality())
        if steps > 0:
            arguments["steps_per_epoch"] = steps
            x = x.repeat()
    arguments.pop("shuffle", None)
    return {"x": x, **arguments}


def session_class(system: str, strategy: str) -> Any:
    """The class of session for a cell of the table."""
    if strategy == "plain":
        return Plain
    return AutoStrategy if system == "autostrategy" else Stock


def run(system: str, strategy: str, job: Job, folder: pathlib.Path) -> Outcome:
    """Train the job; whatever it raises is for the caller to tell."""
    folder.mkdir(parents=True, exist_ok=True)
    k = keras_of(system)
    with job.around():
        session = session_class(system, strategy)(k, job, folder, strategy)
        job.run(session)
        return session.finish()
