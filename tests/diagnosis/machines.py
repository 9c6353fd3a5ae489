"""Healthy machines, as facts and evidence, for tests to break."""

import dataclasses

from autostrategy.diagnosis.evidence import Evidence, TensorFlowAnswer
from autostrategy.facts import Cluster, Device, Facts, Host, Job

GIBIBYTE = 2**30
WHEEL = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")


def gpu(index, **fields):
    fields = {
        "name": "NVIDIA A100-SXM4-80GB",
        "visible_index": index,
        "uuid": f"GPU-{index}",
        "memory_bytes": 80 * GIBIBYTE,
        "memory_free_bytes": 79 * GIBIBYTE,
        "compute_capability": "8.0",
    } | fields
    return Device(kind="gpu", index=index, **fields)


def facts(*devices, cluster=None, platform="linux", **fields):
    driver = {"driver_version": "550.54.15", "cuda_driver_version": "12.4"} if devices else {}
    driver |= {name: fields.pop(name) for name in tuple(driver) if name in fields}
    return Facts(
        host=Host(
            name="node7",
            platform=platform,
            logical_cores=16,
            usable_cores=16.0,
            memory_bytes=64 * GIBIBYTE,
            memory_available_bytes=60 * GIBIBYTE,
            devices=devices,
            **driver,
        ),
        cluster=cluster,
        **fields,
    )


def cpu_evidence(**fields):
    """A healthy machine without a GPU."""
    return Evidence(
        **{
            "system": "Linux 6.8 x86_64, Python 3.11.9",
            "packages": {"keras": "3.15.1", "tensorflow": "2.21.0"},
            "keras_backend": ("tensorflow", "keras.json"),
            "distribution": "ubuntu",
            "open_files": 1024,
            "shared_memory_bytes": 8 * GIBIBYTE,
        }
        | fields
    )


def gpu_evidence(gpus=2, *, answer=(), **fields):
    """A healthy machine with GPUs, for which TensorFlow's own answer may differ."""
    tensorflow = TensorFlowAnswer(gpus=gpus, compute_capabilities=WHEEL)
    healthy = {
        "packages": {
            "keras": "3.15.1",
            "tensorflow": "2.21.0",
            "nvidia-cudnn-cu12": "9.3.0.75",
        },
        "nvidia_cards": tuple(f"0000:{17 + index}:00.0" for index in range(gpus)),
        "device_files": ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"),
        "driver_loaded": True,
        "missing_libraries": {},
        "cudnn_version": (9, 3, 0),
        "libdevice": True,
        "tensorflow": dataclasses.replace(tensorflow, **dict(answer)),
    }
    return cpu_evidence(**(healthy | fields))


def two_workers(task_index=0, source="TF_CONFIG", addresses=("node7:2222", "node8:2222")):
    return Cluster(
        source=source,
        jobs=(Job(name="worker", addresses=addresses),),
        task_type="worker",
        task_index=task_index,
    )
