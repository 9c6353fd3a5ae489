"""TPU chips of this host, and the TPU that the environment names.

A chip is believed when PCI shows it. Google's vendor id alone proves nothing,
since every Google virtual machine has a network card with it (gVNIC, 0x0042).
/dev/accel is also where Linux keeps accelerators of other makers, and a number
in /dev/vfio is any device that is passed through.

Where a chip was found, and the environment names no hosts of its slice, the
machine's own metadata may name them: a Cloud TPU VM has them nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autostrategy.errors import ProbeError
from autostrategy.facts import Device, TpuSlice
from autostrategy.hardware import host

_GOOGLE = "0x1ae0"

# PCI device id: name, and devices that TensorFlow makes of a chip. As in JAX's
# jax/_src/hardware_utils.py; v2 and v3 share an id and have two cores a chip.
_CHIPS = {
    "0x0027": ("TPU v2 or v3", 2),
    "0x005e": ("TPU v4", 1),
    "0x0062": ("TPU v5p", 1),
    "0x0063": ("TPU v5e", 1),
    "0x006f": ("TPU v6e", 1),
    "0x0076": ("TPU7x", 1),
    "0x0083": ("TPU 8i", 1),
    "0x007c": ("TPU 8t", 1),
    "0x0056": ("TPU", 1),
}

_DEFAULT_PORT = 8470

# What TPUClusterResolver reads by itself, in its order, then Colab's old name.
_ENDPOINTS = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"
_NAME = "TPU_NAME"
_CONFIG = "TPU_CONFIG"
_COLAB = "COLAB_TPU_ADDR"

_HOSTNAMES = "TPU_WORKER_HOSTNAMES"
_WORKER_ID = "TPU_WORKER_ID"

# The same as attributes of a Cloud TPU VM.
_ENDPOINTS_ATTRIBUTE = "worker-network-endpoints"
_NUMBER_ATTRIBUTE = "agent-worker-number"
_TYPE_ATTRIBUTE = "accelerator-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuFindings:
    """Chips of this host, the slice they or the environment belong to, and notes."""

    devices: tuple[Device, ...] = ()
    slice: TpuSlice | None = None
    notes: tuple[str, ...] = ()


def _no_attribute(name: str) -> str | None:
    return None


def probe(
    root: Path,
    env: Mapping[str, str],
    attribute: Callable[[str], str | None] = _no_attribute,
) -> TpuFindings:
    """TPU chips below `root`, which stands for /, and the slice that they belong to.

    Args:
        root: the folder that stands for /.
        env: the environment.
        attribute: tells an attribute of this virtual machine by its name. It is
            asked only where `root` has a chip and `env` does not name the hosts.

    Raises:
        ProbeError: the hosts of the slice are in a form that is not known, or
            this host's number is not one of theirs.
    """
    devices = _chips(root)
    notes: list[str] = []
    if devices and not _device_files(root):
        notes.append(
            f"{len(devices)} TPU chips are on the PCI bus, but neither /dev/accel0 nor /dev/vfio/0 "
            "is there to open them. In a container: start it with --privileged or pass the device."
        )
    address = "local" if devices else _address(env, notes)
    if address is None:
        return TpuFindings(notes=tuple(notes))
    accelerator_type = env.get("TPU_ACCELERATOR_TYPE") or None
    hosts, host_index = _hosts(env) if devices else ((), None)
    if devices and not hosts:
        hosts, host_index = _hosts_of_machine(attribute)
        accelerator_type = accelerator_type or attribute(_TYPE_ATTRIBUTE)
    if env.get("MEGASCALE_NUM_SLICES", "1") not in ("", "1"):
        notes.append(
            f"This host is in one of {env['MEGASCALE_NUM_SLICES']} TPU slices; tf.distribute "
            "trains on one slice and not across them."
        )
    found = TpuSlice(
        address=address,
        accelerator_type=accelerator_type,
        topology=env.get("TPU_TOPOLOGY") or None,
        hosts=hosts,
        host_index=host_index,
    )
    return TpuFindings(devices=devices, slice=found, notes=tuple(notes))


def _chips(root: Path) -> tuple[Device, ...]:
    """Chips on PCI, whatever TPU_CHIPS_PER_HOST_BOUNDS says: Colab says 4 of one chip."""
    folder = root / "sys/bus/pci/devices"
    found: list[Device] = []
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (host.read_text(each / "vendor") or "").strip() != _GOOGLE:
            continue
        chip = _CHIPS.get((host.read_text(each / "device") or "").strip().lower())
        if chip is None:
            continue
        name, cores = chip
        index = len(found)
        found.append(
            Device(
                kind="tpu",
                index=index,
                name=name,
                visible_index=index,
                pci_address=each.name,
                cores=cores,
            )
        )
    return tuple(found)


def _device_files(root: Path) -> list[Path]:
    """/dev/accel0 for v2 to v4, /dev/vfio/0 for later chips; no folder counts."""
    candidates = [*(root / "dev").glob("accel[0-9]*"), *(root / "dev/vfio").glob("[0-9]*")]
    return [path for path in candidates if not path.is_dir()]


def _address(env: Mapping[str, str], notes: list[str]) -> str | None:
    """What TPUClusterResolver would be given on a host without chips of its own."""
    if endpoints := env.get(_ENDPOINTS) or env.get(_COLAB):
        return ",".join(_with_scheme_and_port(part) for part in endpoints.split(",") if part)
    name = env.get(_NAME) or _configured_name(env)
    if not name:
        return None
    if name.startswith("grpc://"):
        return ",".join(_with_scheme_and_port(part) for part in name.split(",") if part)
    if name == "local":
        notes.append("TPU_NAME=local, but no TPU chip is on this host's PCI bus; it is ignored.")
        return None
    notes.append(
        f"The environment names the TPU {name!r}, but this host has no chip of its own. Whether "
        "that node exists only the Cloud TPU service knows, which is not asked here."
    )
    return name


def _configured_name(env: Mapping[str, str]) -> str | None:
    """TPU_CONFIG={"tpu_node_name": "t", "project": "p", "zone": "z"}"""
    try:
        config = json.loads(env.get(_CONFIG) or "{}")
    except (ValueError, RecursionError):
        return None
    name = config.get("tpu_node_name") if isinstance(config, dict) else None
    return name if isinstance(name, str) else None


def _with_scheme_and_port(address: str) -> str:
    bare = address.strip().removeprefix("grpc://")
    return f"grpc://{bare}" if re.search(r":\d+$", bare) else f"grpc://{bare}:{_DEFAULT_PORT}"


def _hosts(env: Mapping[str, str]) -> tuple[tuple[str, ...], int | None]:
    """Hosts of the slice by worker number, and the number of this one."""
    hosts = tuple(part for part in env.get(_HOSTNAMES, "").split(",") if part)
    text = env.get(_WORKER_ID, "")
    if not hosts or not text:
        return hosts, None
    return hosts, _number(text, hosts, _WORKER_ID, _HOSTNAMES)


def _hosts_of_machine(
    attribute: Callable[[str], str | None],
) -> tuple[tuple[str, ...], int | None]:
    """Hosts that a Cloud TPU VM knows by its attributes, by worker number.

    t1v-w-0:uid:10.130.0.7,t1v-w-1:uid:10.130.0.8        address in the third field
    t1v-w-0,t1v-w-1                                      newer: names alone
    """
    text = (attribute(_ENDPOINTS_ATTRIBUTE) or "").strip()
    if not text:
        return (), None
    endpoints = [part.strip().split(":") for part in text.split(",")]
    if any(len(fields) not in (1, 3) or not fields[-1] for fields in endpoints):
        raise ProbeError(
            f"The attribute {_ENDPOINTS_ATTRIBUTE} of a Cloud TPU VM must have a name, or name, id "
            f"and address, for each host. Received: {text[:200]!r}. Set {_HOSTNAMES} and "
            f"{_WORKER_ID} instead, or TPU_SKIP_MDS_QUERY=1 to use this host's chips alone."
        )
    hosts = tuple(fields[-1] for fields in endpoints)
    number = (attribute(_NUMBER_ATTRIBUTE) or "").strip()
    if not number:
        return hosts, None
    return hosts, _number(number, hosts, _NUMBER_ATTRIBUTE, _ENDPOINTS_ATTRIBUTE)


def _number(text: str, hosts: tuple[str, ...], name: str, of_hosts: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) < len(hosts)):
        raise ProbeError(
            f"{name} must number one of the {len(hosts)} hosts in {of_hosts}, from 0. "
            f"Received: {text!r}. Unset both on a host that is no part of a TPU slice."
        )
    return int(text)
