"""plan(): which strategy fits these facts, and why each other one does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from autostrategy import device_selection, json_values, plan_text, plan_warnings, scaling
from autostrategy.errors import PlanError, ProbeError
from autostrategy.facts import Cluster, Facts
from autostrategy.scaling import Scaling
from autostrategy.workload import StrategyKind as StrategyKind
from autostrategy.workload import Workload as Workload
from autostrategy.workload import checked

# Large embedding tables are split over parameter servers, into parts of at
# least this size (the default of TensorFlow's `MinSizePartitioner`).
SMALLEST_PART_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a kind was chosen, or why it was not."""

    kind: StrategyKind
    chosen: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A decision with its reasons; `build` and the trainer obey it.

    `devices` are TensorFlow's names in this process, before any device is
    hidden from TensorFlow ("GPU:0", "CPU:0", "TPU:0"). `virtual_cpus` is how many CPU devices
    to make of the one CPU, 0 when the plan is no rehearsal. `replicas` counts
    over all workers. `reasons` has one for each kind, the chosen first.
    """

    kind: StrategyKind
    devices: tuple[str, ...]
    virtual_cpus: int = 0
    replicas: int = 1
    workers: int = 1
    cluster: Cluster | None = None
    scaling: Scaling = field(default_factory=Scaling)
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def global_batch(self) -> int | None:
        """Rows of one step over all replicas."""
        return self.scaling.global_batch_size

    @property
    def digest(self) -> dict[str, str]:
        """What must be equal on all workers: flat, sorted, free of host and task."""
        return plan_text.digest(self)

    def explain(self) -> str:
        """The plan, the reason for each kind, and what to mind, as plain text."""
        return plan_text.explain(self)

    def __str__(self) -> str:
        return self.explain()

    def to_json(self) -> str:
        """This plan as JSON text."""
        return json_values.encode(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote.

        Raises:
            PlanError: the text is no JSON or not of this form.
        """
        try:
            return json_values.decode(cls, text)
        except ProbeError as error:
            raise PlanError(str(error)) from None


def plan(facts: Facts, workload: Workload | None = None, **wishes: Any) -> Plan:
    """The strategy for `facts` that meets `workload`, with the reason for each kind.

    A function of its arguments alone: the same facts and wishes give the same
    plan on every machine, and all workers of a cluster plan alike.

    Args:
        facts: what `probe` returned here or elsewhere.
        workload: what the user wants.
        **wishes: fields of `Workload`, in its place or on top of it.

    Raises:
        PlanError: a wish is no valid value, or cannot be met on these facts.
    """
    workload = checked(dataclasses.replace(workload or Workload(), **wishes))
    devices, remarks = _devices(facts, workload)
    refusals = {kind: rule(facts, workload) for kind, rule in RULES}
    kind = _kind(workload, refusals)
    cluster = facts.cluster
    rehearsed = kind is StrategyKind.TPU and device_selection.are_cpus(devices)
    workers = cluster.world_size if cluster and kind in _CLUSTER_KINDS and not rehearsed else 1
    if kind is StrategyKind.PARAMETER_SERVER and cluster and cluster.task_type != "worker":
        devices, remarks = ("CPU:0",), ()
    asynchronous = kind is StrategyKind.PARAMETER_SERVER
    replicas = workers if asynchronous else workers * len(devices)
    return Plan(
        kind=kind,
        devices=devices,
        virtual_cpus=device_selection.virtual_cpus(devices),
        replicas=replicas,
        workers=workers,
        cluster=cluster,
        scaling=scaling.scale(
            # An update of a parameter server uses the rows of one worker.
            replicas=1 if asynchronous else replicas,
            batch_size=workload.batch_size,
            batch_scaling=workload.batch_scaling,
            learning_rate=workload.learning_rate,
            optimizer=workload.optimizer,
            warmup_steps=workload.warmup_steps,
            steps_per_epoch=workload.steps_per_epoch,
            epochs=workload.epochs,
            rows=workload.rows,
        ),
        reasons=_reasons(kind, facts, workload, devices, refusals),
        warnings=(*remarks, *plan_warnings.warnings(kind, facts, workload, devices)),
        notes=facts.notes,
    )


def _devices(facts: Facts, workload: Workload) -> tuple[tuple[str, ...], tuple[str, ...]]:
    wish = workload.devices
    named_tpu = device_selection.named_tpu(facts)
    if wish is None and named_tpu and workload.strategy == StrategyKind.TPU.value:
        return named_tpu, ()
    if wish is None and workload.strategy == StrategyKind.ONE_DEVICE.value:
        wish = 1
    cluster = _training_cluster(facts)
    return device_selection.choose(
        facts, wish, keep_all=cluster is not None, place=cluster.place if cluster else (0, 1)
    )


def _training_cluster(facts: Facts) -> Cluster | None:
    """The cluster, when there is somebody in it to train with.

    A cluster of one worker is a single machine, and an evaluator is not part
    of the training cluster (tensorflow/tensorflow#46169).
    """
    cluster = facts.cluster
    if cluster is None or cluster.task_type == "evaluator":
        return None
    return cluster if cluster.world_size > 1 or cluster.addresses("ps") else None


# A rule says why a strategy does not fit, as the end of a sentence that begins
# with the strategy's name; None means that it fits.


def _parameter_server(facts: Facts, workload: Workload) -> str | None:
    missing = [
        job
        for job in ("chief", "worker", "ps")
        if not (facts.cluster and facts.cluster.addresses(job))
    ]
    if facts.cluster and facts.cluster.task_type == "evaluator":
        return "needs a task of the training cluster; this one is the evaluator"
    if missing:
        found = plan_text.jobs(facts.cluster) if facts.cluster else "no cluster"
        return f"needs a cluster with chief, worker and ps tasks; found {found}"
    return None


def _multi_worker_mirrored(facts: Facts, workload: Workload) -> str | None:
    cluster = facts.cluster
    if cluster is None:
        return "needs a cluster of 2 or more workers; found no cluster"
    if cluster.task_type == "evaluator":
        return "needs a task of the training cluster; this one is the evaluator"
    if cluster.addresses("ps"):
        return "makes all workers step together; the ps tasks are for workers that do not"
    if cluster.world_size < 2:
        return "needs a cluster of 2 or more workers; found 1, which is a single machine"
    devices, _ = _devices(facts, workload)
    if _are(devices, "TPU"):
        return "is for GPUs and CPUs; the TPU hosts of a pod are one TPUStrategy"
    # CollectiveAllReduceExtended takes all GPUs, or else exactly CPU:0
    # (tensorflow/python/distribute/collective_all_reduce_strategy.py).
    if not _are(devices, "GPU") and devices != ("CPU:0",):
        return f"uses only GPUs or only CPU:0 in each worker; asked for {', '.join(devices)}"
    return None


def _tpu(facts: Facts, workload: Workload) -> str | None:
    devices, _ = _devices(facts, workload)
    asked_for_cpus = workload.devices is not None and device_selection.are_cpus(devices)
    if asked_for_cpus and workload.strategy == StrategyKind.TPU.value:
        return _refuse_cluster(facts)  # a rehearsal of its rules
    cores = [name for name in device_selection.by_name(facts) if name.startswith("TPU")]
    if not cores and facts.tpu and workload.strategy != StrategyKind.TPU.value:
        return f"is used only when asked for, since {facts.tpu.address} is not in this host"
    cores = cores or list(device_selection.named_tpu(facts))
    if not cores:
        return "needs TPU devices; found none"
    cluster = _training_cluster(facts)
    if cluster and cluster.addresses("ps"):
        return "makes all cores step together; the ps tasks are for workers that do not"
    if set(devices) != set(cores):
        return f"uses all {len(cores)} TPU devices; asked for {', '.join(devices)}"
    return None


def _mirrored(facts: Facts, workload: Workload) -> str | None:
    if refusal := _refuse_cluster(facts) or _refuse_tpu(facts, workload):
        return refusal
    devices, _ = _devices(facts, workload)
    asked_for_one = workload.devices is not None and workload.strategy == "mirrored"
    if len(devices) > 1 or asked_for_one:
        return None
    if (instances := device_selection.mig_instances(facts)) > 1:
        return f"needs whole GPUs; found {instances} MIG instances, and a process can use one"
    gpus = [name for name in device_selection.by_name(facts) if name.startswith("GPU")]
    if len(gpus) > 1:
        return f"needs 2 or more devices; uses {', '.join(devices)} of {', '.join(gpus)}"
    found = f"found {len(gpus)}{_hidden(facts)}"
    return f"needs 2 or more GPUs on one host; {found}"


def _one_device(facts: Facts, workload: Workload) -> str | None:
    if refusal := _refuse_cluster(facts) or _refuse_tpu(facts, workload):
        return refusal
    devices, _ = _devices(facts, workload)
    return None if len(devices) == 1 else f"would use only one of {', '.join(devices)}"


def _central_storage(facts: Facts, workload: Workload) -> str | None:
    if refusal := _refuse_cluster(facts) or _refuse_tpu(facts, workload):
        return refusal
    if workload.strategy == StrategyKind.CENTRAL_STORAGE.value:
        return None
    if workload.strategy == StrategyKind.PARAMETER_SERVER.value and facts.cluster is None:
        return None  # its form on one host: variables on the CPU, devices that compute
    return "copies every variable from the CPU in each step, so it is used only when asked for"


# The first that fits is chosen. Clusters come first because somebody described
# them on purpose, and a strategy of one host would train copies that part.
RULES: tuple[tuple[StrategyKind, Callable[[Facts, Workload], str | None]], ...] = (
    (StrategyKind.PARAMETER_SERVER, _parameter_server),
    (StrategyKind.TPU, _tpu),
    (StrategyKind.MULTI_WORKER_MIRRORED, _multi_worker_mirrored),
    (StrategyKind.MIRRORED, _mirrored),
    (StrategyKind.ONE_DEVICE, _one_device),
    (StrategyKind.CENTRAL_STORAGE, _central_storage),
)

_CLUSTER_KINDS = (
    StrategyKind.PARAMETER_SERVER,
    StrategyKind.TPU,
    StrategyKind.MULTI_WORKER_MIRRORED,
)

_WAYS_OUT = {
    StrategyKind.ONE_DEVICE: "Name one GPU or CPU in devices=, outside a cluster",
    StrategyKind.MIRRORED: "Rehearse it on a host of its own with devices=['CPU:0', 'CPU:1']",
    StrategyKind.CENTRAL_STORAGE: "Use it on the GPUs of a host of its own",
    StrategyKind.MULTI_WORKER_MIRRORED: (
        "Start each worker with srun, or with a TF_CONFIG such as "
        '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, '
        '"task": {"type": "worker", "index": 0}}'
    ),
    StrategyKind.PARAMETER_SERVER: (
        "Start each task with a TF_CONFIG such as "
        '{"cluster": {"chief": ["host0:2222"], "worker": ["host1:2222"], "ps": ["host2:2222"]}, '
        '"task": {"type": "worker", "index": 0}}'
    ),
    StrategyKind.TPU: (
        "Start the program on a TPU host, with all of its TPU devices; or rehearse its rules on a "
        "host of its own with devices=['CPU:0', 'CPU:1']"
    ),
}


def _kind(workload: Workload, refusals: dict[StrategyKind, str | None]) -> StrategyKind:
    if workload.strategy != "auto":
        kind = StrategyKind(workload.strategy)
        if kind is StrategyKind.PARAMETER_SERVER and refusals[StrategyKind.CENTRAL_STORAGE] is None:
            kind = StrategyKind.CENTRAL_STORAGE
        if refusals[kind]:
            raise PlanError(
                f"strategy={kind.value!r} {refusals[kind]}. {_WAYS_OUT[kind]}; "
                "or use strategy='auto'."
            )
        return kind
    fitting = [kind for kind, refusal in refusals.items() if refusal is None]
    if not fitting:
        refused = "; ".join(f"{kind.value} {refusal}" for kind, refusal in refusals.items())
        raise PlanError(
            f"A strategy must fit the facts and the wishes. Received what none fits: {refused}. "
            "Change devices= or the cluster."
        )
    return fitting[0]


def _refuse_cluster(facts: Facts) -> str | None:
    cluster = _training_cluster(facts)
    if cluster is None:
        return None
    return f"would train a copy of its own in each task of the cluster ({plan_text.jobs(cluster)})"


def _refuse_tpu(facts: Facts, workload: Workload) -> str | None:
    devices, _ = _devices(facts, workload)
    return "cannot compute on TPU devices" if _are(devices, "TPU") else None


def _are(devices: tuple[str, ...], kind: str) -> bool:
    return all(name.startswith(kind) for name in devices)


def _hidden(facts: Facts) -> str:
    hidden = device_selection.hidden_gpus(facts)
    if not hidden:
        return ""
    return f" (CUDA_VISIBLE_DEVICES={facts.visible_devices!r} hides {len(hidden)})"


def _reasons(
    chosen: StrategyKind,
    facts: Facts,
    workload: Workload,
    devices: tuple[str, ...],
    refusals: dict[StrategyKind, str | None],
) -> tuple[Reason, ...]:
    why_not = "fits too, but " + (
        "comes after" if workload.strategy == "auto" else "was not asked for"
    )
    return (
        Reason(kind=chosen, chosen=True, text=_why(chosen, facts, workload, devices)),
        *(
            Reason(kind=kind, chosen=False, text=refusals[kind] or why_not)
            for kind in StrategyKind
            if kind is not chosen
        ),
    )


def _why(kind: StrategyKind, facts: Facts, workload: Workload, devices: tuple[str, ...]) -> str:
    names = ", ".join(devices)
    cluster = facts.cluster
    asked = (
        "" if workload.strategy == "auto" else f"asked for with strategy={workload.strategy!r}: "
    )
    if kind is StrategyKind.CENTRAL_STORAGE and workload.strategy != kind.value:
        asked += "the form of parameter servers on one host, "
    if cluster and kind is StrategyKind.PARAMETER_SERVER:
        role = f"{cluster.task_type} {cluster.task_index}"
        if cluster.task_type == "chief":
            role = "the coordinator (chief)"
        servers = len(cluster.addresses("ps"))
        tables = (
            f"; embedding tables of {2 * SMALLEST_PART_BYTES >> 10} KiB and more are split over "
            f"the {servers} servers"
        )
        return (
            f"{asked}the cluster has {plan_text.jobs(cluster)}; this task is {role}"
            f"{tables if servers > 1 else ''}"
        )
    if cluster and kind in _CLUSTER_KINDS and cluster.world_size > 1:
        return f"{asked}{cluster.world_size} workers that step together, each on {names}"
    if cluster and cluster.task_type == "evaluator":
        return f"{asked}this task is the evaluator: not in cluster, so it works alone on {names}"
    if kind is StrategyKind.TPU and device_selection.are_cpus(devices):
        return f"{asked}a rehearsal of the TPU rules, XLA and static shapes, on {names}; no TPU"
    if kind is not StrategyKind.ONE_DEVICE:
        return f"{asked}a replica on each of {names}"
    gpus = [name for name in device_selection.by_name(facts) if name.startswith("GPU")]
    if devices == ("CPU:0",) and not gpus:
        return f"{asked}no GPU that can be used was found{_hidden(facts)}, so CPU:0 computes"
    if len(gpus) > 1 and names in gpus:
        return f"{asked}{names} computes, one of {', '.join(gpus)}{_hidden(facts)}"
    return f"{asked}one device computes, {names}{_hidden(facts)}"
