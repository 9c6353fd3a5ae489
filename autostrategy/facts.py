"""What was observed: devices, host, cluster. Frozen, JSON both ways, no opinions.

Words: a *device* is physical, a *replica* is a model copy, a *worker* is a
process, a *host* is a machine, a *task* is a (type, index) in a TensorFlow
cluster.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from autostrategy import json_values

# Jobs whose tasks compute gradients when there are no parameter servers
# (tensorflow/python/distribute/multi_worker_util.py, `worker_count`).
_TRAINING_JOBS = ("chief", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that holds memory on a device. `name` is None when it cannot be read."""

    pid: int
    memory_bytes: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator as its driver reports it, before a framework touches it.

    `index` is unique among devices of one `kind`. It counts cards in PCI bus
    order and ignores CUDA_VISIBLE_DEVICES; MIG instances are counted on after
    the last card and name theirs by `parent_index`. `visible_index` is the
    position that CUDA_VISIBLE_DEVICES (or the lack of it) gives the device in
    this process, None when it is hidden. `cores` is how many devices
    TensorFlow makes of it: 2 for a TPU v2 or v3 chip, else 1. `processes` are
    other processes. A field that the driver will not tell is None.
    """

    kind: Literal["gpu", "tpu"]
    index: int
    name: str
    visible_index: int | None = None
    uuid: str | None = None
    pci_address: str | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    compute_capability: str | None = None
    mig: Literal["off", "parent", "instance"] = "off"
    parent_index: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    unified_memory: bool = False
    cores: int = 1
    utilization_percent: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    processes: tuple[DeviceProcess, ...] | None = ()
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How two devices of one host reach each other; `first` < `second` are `Device.index`.

    `kind` is the best path: "nvlink" (`nvlinks` of them, card to card),
    "nvswitch" (`nvlinks` from each card into the switch), or the PCI ancestor
    that they share, from near ("pcie_switch") to far ("system").
    """

    first: int
    second: int
    kind: Literal[
        "nvlink", "nvswitch", "same_board", "pcie_switch", "host_bridge", "numa", "system"
    ]
    nvlinks: int = 0
    peer_access: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine as this process may use it.

    `usable_cores` is the smallest of affinity and cgroup quota and may be a
    fraction; `memory_bytes` is the smallest of physical memory and cgroup limit.
    """

    name: str
    platform: Literal["linux", "darwin", "windows"]
    logical_cores: int
    usable_cores: float
    memory_bytes: int
    memory_available_bytes: int
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    driver_version: str | None = None
    cuda_driver_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All tasks of one type in a cluster; `addresses[i]` is `host:port` of task i."""

    name: Literal["chief", "worker", "ps", "evaluator"]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """TensorFlow's cluster spec, plus which task this process is.

    `source` names what told it ("TF_CONFIG", "Slurm"). An evaluator is not
    part of the training cluster: its own job is not among `jobs`.
    """

    source: str
    jobs: tuple[Job, ...]
    task_type: Literal["chief", "worker", "ps", "evaluator"]
    task_index: int

    def addresses(self, job: str) -> tuple[str, ...]:
        """Addresses of the tasks of `job`, empty when there is no such job."""
        return next((each.addresses for each in self.jobs if each.name == job), ())

    @property
    def workers(self) -> tuple[str, ...]:
        """Addresses of the tasks that compute gradients, in rank order.

        With parameter servers the chief coordinates and does not compute.
        """
        if self.addresses("ps"):
            return self.addresses("worker")
        return tuple(address for job in _TRAINING_JOBS for address in self.addresses(job))

    @property
    def world_size(self) -> int:
        """Number of tasks that compute gradients; 1 for an evaluator, its own world."""
        return 1 if self.task_type == "evaluator" else len(self.workers)

    @property
    def rank(self) -> int | None:
        """Position of this task among `workers`, None for ps and a coordinating chief."""
        if self.task_type == "evaluator":
            return 0
        if self.task_type == "ps" or (self.task_type == "chief" and self.addresses("ps")):
            return None
        before = len(self.addresses("chief")) if self.task_type == "worker" else 0
        return self.task_index + (0 if self.addresses("ps") else before)

    @property
    def place(self) -> tuple[int, int]:
        """Which this task is of how many workers on its host; (0, 1) where it is no worker."""
        if self.rank is None or self.task_type == "evaluator":
            return 0, 1
        hosts = [address.rpartition(":")[0] for address in self.workers]
        here = hosts[self.rank]
        return hosts[: self.rank].count(here), hosts.count(here)

    @property
    def is_chief(self) -> bool:
        """Whether this task writes files and speaks for the cluster.

        The chief where there is one, else worker 0; an evaluator is its own.
        """
        if self.task_type == "evaluator":
            return True
        if self.addresses("chief"):
            return self.task_type == "chief"
        return self.task_type == "worker" and self.task_index == 0

    @property
    def tf_config(self) -> str:
        """This cluster as the value of TF_CONFIG."""
        return json.dumps(
            {
                "cluster": {job.name: list(job.addresses) for job in self.jobs},
                "task": {"type": self.task_type, "index": self.task_index},
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Processes started together that know their ranks and not their addresses.

    What MPI or torchrun tell. TensorFlow needs the address of every task, so a
    launch is no `Cluster` until its processes have exchanged them. `local_rank`
    and `local_size` count within a host. `meeting_point` is a host:port known to
    all, where one process can collect addresses; the launcher's own store may
    listen there. `hosts` are those of the job where the environment names them,
    in its order; which rank runs on which is not known.
    """

    source: str
    rank: int
    world_size: int
    local_rank: int | None = None
    local_size: int | None = None
    meeting_point: str | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuSlice:
    """The TPU this process may ask for, and the hosts that share it.

    `address` is what `TPUClusterResolver(tpu=...)` takes: "local" for chips of
    this host, "grpc://host:port[,...]", or the bare name of a Cloud TPU node,
    which nothing here has verified. `hosts` are in the order of their worker
    numbers, empty when the environment does not name them.
    """

    address: str
    accelerator_type: str | None = None
    topology: str | None = None
    hosts: tuple[str, ...] = ()
    host_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that planning may depend on.

    There is a `cluster` or a `launch` or neither, never both.
    `visible_devices` is CUDA_VISIBLE_DEVICES as found, None when unset.
    `notes` are observations that are no errors: a card that could not be
    read, an empty TF_CONFIG that was taken as unset.
    """

    host: Host
    cluster: Cluster | None = None
    launch: Launch | None = None
    tpu: TpuSlice | None = None
    visible_devices: str | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """These facts as JSON text."""
        return json_values.encode(self)

    @classmethod
    def from_json(cls, text: str) -> Facts:
        """Facts that `to_json` wrote.

        Raises:
            ProbeError: the text is no JSON or not of this form.
        """
        return json_values.decode(cls, text)
