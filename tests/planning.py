"""Facts of machines and clusters, in a line each."""

from autostrategy.facts import Cluster, Device, DeviceProcess, Facts, Host, Job

GIB = 2**30


def gpu(index, **fields):
    fields = {"visible_index": index, "memory_bytes": 80 * GIB, "name": "H100"} | fields
    return Device(kind="gpu", index=index, **fields)


def tpu(index):
    return Device(kind="tpu", index=index, name="TPU v5e", visible_index=index)


def facts(*devices, cluster=None, platform="linux", **fields):
    return Facts(
        host=Host(
            name="host",
            platform=platform,
            logical_cores=8,
            usable_cores=8.0,
            memory_bytes=32 * GIB,
            memory_available_bytes=16 * GIB,
            devices=devices,
        ),
        cluster=cluster,
        **fields,
    )


def cluster(task_type="worker", task_index=0, source="TF_CONFIG", **jobs):
    return Cluster(
        source=source,
        jobs=tuple(Job(name=name, addresses=tuple(where.split())) for name, where in jobs.items()),
        task_type=task_type,
        task_index=task_index,
    )


TWO_WORKERS = {"worker": "h1:2222 h2:2222"}
SERVERS = {"chief": "c:1", "worker": "w0:1 w1:1", "ps": "p:1"}


def reason(chosen_plan, kind):
    return next(each.text for each in chosen_plan.reasons if each.kind.value == kind)


BUSY = {"memory_free_bytes": 20 * GIB, "processes": (DeviceProcess(pid=4321),)}
