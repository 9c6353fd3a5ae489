"""probe(): look at this machine and its cluster, and say what is there.

The only reader of the environment for facts. It imports no framework, opens no device and asks
no network, save the metadata server of a machine that has TPU chips. So a process
that has probed can still fork, choose its devices, or make a multi-worker
strategy. Its order: host, GPUs, TPUs, cluster.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from autostrategy import facts_text
from autostrategy.clusters import CLUSTER_PROBES
from autostrategy.facts import Cluster, Facts, Launch
from autostrategy.hardware import cuda_visibility, gce_metadata, host, nvidia, tpu


def probe(
    *,
    env: Mapping[str, str] | None = None,
    root: str | Path = "/",
    hostname: str | None = None,
) -> Facts:
    """What this process may use: devices, host, cluster.

    Args:
        env: the environment to read, os.environ by default.
        root: a folder that stands for /. With any other than / itself only its
            files are read: no driver or metadata server is asked, so no GPU is found.
        hostname: the host's name, asked of the system by default.

    Raises:
        ProbeError: the environment contradicts itself, such as a TF_CONFIG
            whose task is not in its cluster. A missing GPU is no error.
    """
    env = os.environ if env is None else env
    root = Path(root)
    name = hostname or _hostname(root)
    machine = host.probe(root, name=name)
    gpus = nvidia.probe(machine) if host.is_this_machine(root) else nvidia.NvidiaFindings()
    numbered, visibility_notes = cuda_visibility.number(gpus.devices, env)
    if host.is_this_machine(root):
        tpus = tpu.probe(root, env, functools.partial(gce_metadata.attribute, env))
    else:
        tpus = tpu.probe(root, env)
    started, cluster_notes = _started(env, name, root)
    return Facts(
        host=dataclasses.replace(
            machine,
            devices=(*numbered, *tpus.devices),
            links=gpus.links,
            driver_version=gpus.driver_version,
            cuda_driver_version=gpus.cuda_driver_version,
        ),
        cluster=started if isinstance(started, Cluster) else None,
        launch=started if isinstance(started, Launch) else None,
        tpu=tpus.slice,
        visible_devices=env.get(cuda_visibility.VISIBLE_DEVICES),
        notes=(*gpus.notes, *visibility_notes, *tpus.notes, *cluster_notes),
    )


def _started(
    env: Mapping[str, str], hostname: str, root: Path
) -> tuple[Cluster | Launch | None, tuple[str, ...]]:
    """The first answer of CLUSTER_PROBES, with the notes of those asked until then."""
    notes: list[str] = []
    for each in CLUSTER_PROBES:
        notes += each.notes(env, root)
        found = each.from_env(env, hostname, root)
        if isinstance(found, Launch):
            notes.append(facts_text.unmet(found))
        if found is not None:
            return found, tuple(notes)
    return None, tuple(notes)


def _hostname(root: Path) -> str:
    if host.is_this_machine(root):
        return socket.gethostname()
    return (host.read_text(root / "proc/sys/kernel/hostname") or "").strip() or "unknown"
