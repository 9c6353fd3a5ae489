"""build(plan): from a plan to a `tf.distribute` strategy.

The first thing that touches TensorFlow in a process. Nothing here decides; if
the plan cannot be obeyed on this machine, it raises.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autostrategy import device_selection, parameter_servers, rendezvous, tensorflow_internals
from autostrategy.errors import PlanError
from autostrategy.planner import Plan, StrategyKind

_TOO_LATE = (
    "{} must be made before TensorFlow is used. Received: a process "
    "that already made a tensor, variable or dataset. Call autostrategy.fit (or build) "
    "first and make the data in a function, or start the script with `autostrategy run`."
)

# One strategy for each set of devices, for the life of the process: a
# multi-worker one starts the server of its process, and a mirrored one counts
# the keys of its collectives.
_mirrored_on: dict[tuple[str, ...], tf.distribute.Strategy] = {}
_central_on: dict[tuple[str, ...], tf.distribute.Strategy] = {}
_multi_worker: dict[tuple[str, tuple[str, ...]], tf.distribute.Strategy] = {}


def build(
    plan: Plan, *, start_timeout: float | None = None, late: bool = False
) -> tf.distribute.Strategy:
    """The strategy that `plan` names, on the devices that it names.

    For one device that TensorFlow uses anyway this is TensorFlow's default
    strategy, which costs nothing per step (`OneDeviceStrategy` does). In a
    cluster with parameter servers only the chief comes back with a strategy:
    on other tasks this serves until the chief's process ends, and then ends
    the process (`SystemExit`).

    Args:
        plan: what `autostrategy.plan` returned.
        start_timeout: seconds to wait for the other tasks of a cluster; by
            default AUTOSTRATEGY_START_TIMEOUT, or 60.
        late: start a multi-worker strategy although TensorFlow is in use; the
            caller has taken out every variable and dataset, and puts them back.

    Raises:
        PlanError: a device of the plan is not there, or TensorFlow was used
            too early for this plan.
        LaunchError: another task of the cluster did not appear in time.
    """
    if plan.kind is StrategyKind.MULTI_WORKER_MIRRORED:
        return _multi_worker_mirrored(plan, start_timeout, late=late)
    if plan.kind is StrategyKind.PARAMETER_SERVER:
        return _parameter_server(plan, start_timeout, late=late)
    return _BUILDERS[plan.kind](plan, start_timeout)


def prepare(plan: Plan) -> None:
    """Start what must come before any other use of TensorFlow in this process.

    `autostrategy run` calls it before a script that does not know of clusters
    makes its first tensor; a later `build` of the same plan takes it up. On
    tasks that only serve, the script does not run at all.
    """
    if plan.kind in (StrategyKind.MULTI_WORKER_MIRRORED, StrategyKind.PARAMETER_SERVER):
        build(plan)


def _one_device(plan: Plan, start_timeout: float | None) -> tf.distribute.Strategy:
    _require_devices(plan)
    (device,) = plan.devices
    default = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    if device == default:
        return tf.distribute.get_strategy()
    return tf.distribute.OneDeviceStrategy(device)


def _mirrored(plan: Plan, start_timeout: float | None) -> tf.distribute.Strategy:
    _require_devices(plan)
    if plan.devices not in _mirrored_on:
        # TensorFlow's default is a collective, whose keys are counted anew by
        # each strategy object: two of them in one process mix up their
        # messages (measured with 2.21: "Shape mismatch in the collective
        # instance 100"). On CPUs a plain reduction needs no keys.
        on_cpu = all(device.startswith("CPU") for device in plan.devices)
        _mirrored_on[plan.devices] = tf.distribute.MirroredStrategy(
            list(plan.devices),
            cross_device_ops=tf.distribute.ReductionToOneDevice() if on_cpu else None,
        )
    return _mirrored_on[plan.devices]


def _multi_worker_mirrored(
    plan: Plan, start_timeout: float | None, *, late: bool
) -> tf.distribute.Strategy:
    cluster = plan.cluster
    if cluster is None:
        raise PlanError(
            "multi_worker_mirrored needs a cluster of 2 or more workers. Received: a plan without "
            "one. Set TF_CONFIG, or start the script with srun."
        )
    key = (cluster.tf_config, plan.devices)
    if key in _multi_worker:
        return _multi_worker[key]
    in_use = tensorflow_internals.is_initialized()
    if in_use and not late:
        raise PlanError(_TOO_LATE.format("A multi-worker strategy"))
    if not in_use:
        _limit_to_plan(plan)
    rendezvous.meet(cluster, timeout=rendezvous.start_timeout_or(start_timeout))
    # The one write of os.environ: TensorFlow's resolver, its servers and any
    # child process must see the cluster that was planned, whatever found it.
    os.environ["TF_CONFIG"] = cluster.tf_config
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    with tensorflow_internals.late_collectives() if in_use else contextlib.nullcontext():
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    _multi_worker[key] = strategy
    return strategy


def _central_storage(plan: Plan, start_timeout: float | None) -> tf.distribute.Strategy:
    _require_devices(plan)
    if plan.devices not in _central_on:
        _central_on[plan.devices] = tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=list(plan.devices), parameter_device="CPU:0"
        )
    return _central_on[plan.devices]


def _parameter_server(
    plan: Plan, start_timeout: float | None, *, late: bool
) -> tf.distribute.Strategy:
    cluster = plan.cluster
    if cluster is None:
        raise PlanError(
            "parameter_server needs a cluster of chief, worker and ps tasks. Received: a plan "
            "without one. Set TF_CONFIG for each task."
        )
    key = (cluster.tf_config, plan.devices)
    if key not in _multi_worker:
        os.environ["TF_CONFIG"] = cluster.tf_config
        timeout = rendezvous.start_timeout_or(start_timeout)
        if cluster.task_type != "chief":
            parameter_servers.serve(cluster, timeout=timeout)
        if tensorflow_internals.is_initialized() and not late:
            raise PlanError(_TOO_LATE.format("A parameter-server strategy"))
        _multi_worker[key] = parameter_servers.connect(cluster, timeout=timeout)
    return _multi_worker[key]


def _require_devices(plan: Plan) -> None:
    """Make the virtual CPUs of the plan, and check that all its devices are there."""
    if plan.virtual_cpus > 1 and not tensorflow_internals.is_initialized():
        (cpu,) = tf.config.list_physical_devices("CPU")
        made = tf.config.get_logical_device_configuration(cpu) or []
        if len(made) < plan.virtual_cpus:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * plan.virtual_cpus
            )
    there = [
        f"{device.device_type}:{device.name.rpartition(':')[2]}"
        for device in tf.config.list_logical_devices()
    ]
    missing = [device for device in plan.devices if device not in there]
    if missing and plan.virtual_cpus:
        raise PlanError(
            f"{plan.virtual_cpus} virtual CPU devices must be made before TensorFlow is used. "
            f"Received: a process where TensorFlow already fixed {there}. Call autostrategy.fit "
            "(or build) before the first tensor or dataset, or set them yourself with "
            "tf.config.set_logical_device_configuration."
        )
    if missing:
        raise PlanError(
            f"TensorFlow must see the planned devices {list(plan.devices)}. Received: {there}. "
            "A device that the driver lists and TensorFlow does not is a matter of libraries: "
            "try pip install 'autostrategy[cuda]'."
        )


def _limit_to_plan(plan: Plan) -> None:
    """Hide the GPUs that the plan leaves out: a multi-worker strategy takes all it sees."""
    gpus = tf.config.list_physical_devices("GPU")
    wanted = [gpu for index, gpu in enumerate(gpus) if f"GPU:{index}" in plan.devices]
    if wanted != gpus:
        tf.config.set_visible_devices(wanted, "GPU")


def connect_tpu() -> Any:
    """Resolve, connect and initialise the TPU of this host; returns the resolver.

    The narrow seam of the TPU path: `_tpu` calls it through the module, so
    that a test without a TPU can stand in for it. "local" is what a TPU VM
    wants; '' and None fail there (tensorflow issue 70827).
    """
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
        tpu=os.environ.get("TPU_NAME") or "local"
    )
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return resolver


def _tpu(plan: Plan, start_timeout: float | None) -> tf.distribute.Strategy:
    if device_selection.are_cpus(plan.devices):
        # A rehearsal of the TPU rules.
        return (_mirrored if len(plan.devices) > 1 else _one_device)(plan, start_timeout)
    timeout = rendezvous.start_timeout_or(start_timeout)
    resolver = rendezvous.within(
        connect_tpu,
        timeout=timeout,
        otherwise=(
            f"The TPU must answer within {timeout:g} s. Received: no answer. Is another process "
            "holding it, and is tensorflow-tpu with a matching libtpu installed?"
        ),
    )
    return tf.distribute.TPUStrategy(resolver)


_BUILDERS: dict[StrategyKind, Callable[[Plan, float | None], tf.distribute.Strategy]] = {
    StrategyKind.ONE_DEVICE: _one_device,
    StrategyKind.MIRRORED: _mirrored,
    StrategyKind.CENTRAL_STORAGE: _central_storage,
    StrategyKind.TPU: _tpu,
}
