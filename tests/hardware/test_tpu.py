import json
from pathlib import Path

import pytest

from autostrategy.errors import ProbeError
from autostrategy.hardware import tpu

CASES = json.loads((Path(__file__).parent / "tpu_cases.json").read_text())


def write(root, files):
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def chips(count, device="0x0063"):
    return {
        f"/sys/bus/pci/devices/0000:00:{slot + 4:02x}.0/{name}": text
        for slot in range(count)
        for name, text in (("vendor", "0x1ae0\n"), ("device", f"{device}\n"))
    }


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_environment_and_bus_give_their_tpu(case, tmp_path):
    root = write(tmp_path, case["files"])
    attribute = case.get("attributes", {}).get
    if "error" in case:
        with pytest.raises(ProbeError, match=case["error"]):
            tpu.probe(root, case["env"], attribute)
        return

    found = tpu.probe(root, case["env"], attribute)

    assert case["chips"] == len(found.devices)
    assert case["address"] == (found.slice.address if found.slice else None)
    assert case.get("note", "") in " ".join(found.notes)
    if "local_devices" in case:
        assert case["local_devices"] == sum(device.cores for device in found.devices)
    if "tpu_hosts" in case:
        assert case["tpu_hosts"] == list(found.slice.hosts)
    for name in ("host_index", "accelerator_type"):
        if name in case:
            assert case[name] == getattr(found.slice, name)


def test_a_chip_without_its_device_file_is_noted(tmp_path):
    found = tpu.probe(write(tmp_path, chips(4)), {})

    assert len(found.devices) == 4
    assert "4 TPU chips are on the PCI bus" in found.notes[0]


@pytest.mark.parametrize("path", ["/dev/accel0", "/dev/vfio/0"])
def test_a_device_file_ends_that_note(path, tmp_path):
    assert tpu.probe(write(tmp_path, {**chips(1), path: ""}), {}).notes == ()


def test_the_kernels_own_accelerator_folder_is_no_tpu(tmp_path):
    """Intel's NPU and Habana's Gaudi are /dev/accel/accel0."""
    found = tpu.probe(write(tmp_path, {"/dev/accel/accel0": ""}), {})

    assert found == tpu.TpuFindings()


def test_chips_are_numbered_in_bus_order_and_visible(tmp_path):
    found = tpu.probe(write(tmp_path, chips(4)), {"TPU_ACCELERATOR_TYPE": "v5litepod-4"})

    assert [(each.index, each.visible_index) for each in found.devices] == [
        (index, index) for index in range(4)
    ]
    assert found.devices[0].name == "TPU v5e"
    assert found.slice.accelerator_type == "v5litepod-4"


@pytest.mark.parametrize(
    ("env", "address"),
    [
        ({}, None),
        ({"TPU_NAME": ""}, None),
        ({"TPU_NAME": "local"}, None),
        ({"TPU_NAME": "grpc://h"}, "grpc://h:8470"),
        ({"TPU_CONFIG": '{"tpu_node_name": "t", "project": "p"}'}, "t"),
        ({"TPU_CONFIG": "nonsense"}, None),
        ({"TPU_CONFIG": "[]"}, None),
        ({"TPU_CONFIG": '{"tpu_node_name": 1}'}, None),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "7"}, None),
        ({"COLAB_TPU_1VM": "", "COLAB_GPU": ""}, None),
    ],
)
def test_without_chips_the_environment_alone_names_the_tpu(env, address, tmp_path):
    found = tpu.probe(tmp_path, env)

    assert address == (found.slice.address if found.slice else None)


@pytest.mark.parametrize("number", ["2", "-1", "x", "²"])
def test_a_worker_number_beyond_the_hosts_is_refused(number, tmp_path):
    root = write(tmp_path, chips(1))
    env = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": number}

    with pytest.raises(ProbeError, match=r"TPU_WORKER_ID must number one of the 2 hosts .*Unset"):
        tpu.probe(root, env)


def test_a_cloud_tpu_vm_may_give_names_alone(tmp_path):
    attributes = {"worker-network-endpoints": "t1v-w-0,t1v-w-1\n"}

    found = tpu.probe(write(tmp_path, chips(1)), {}, attributes.get)

    assert (found.slice.hosts, found.slice.host_index) == (("t1v-w-0", "t1v-w-1"), None)


@pytest.mark.parametrize(
    ("files", "env"),
    [({}, {}), (chips(1), {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"})],
)
def test_a_machine_without_chips_or_with_named_hosts_is_not_asked(files, env, tmp_path):
    def attribute(name):
        raise AssertionError(name)

    tpu.probe(write(tmp_path, files), env, attribute)


def test_a_number_of_the_machine_beyond_the_hosts_is_refused(tmp_path):
    attributes = {"worker-network-endpoints": "a,b", "agent-worker-number": "2"}

    with pytest.raises(
        ProbeError, match=r"agent-worker-number must number one of the 2 hosts in w"
    ):
        tpu.probe(write(tmp_path, chips(1)), {}, attributes.get)
