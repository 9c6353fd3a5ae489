import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autostrategy.errors import ProbeError
from autostrategy.facts import Device
from autostrategy.hardware import cuda_visibility

CASES = json.loads((Path(__file__).parent / "visibility_cases.json").read_text())


def gpus(count):
    return tuple(
        Device(kind="gpu", index=index, name="NVIDIA A100", uuid=f"GPU-{index:08x}-0000")
        for index in range(count)
    )


def from_inventory(inventory):
    devices = [
        Device(
            kind="gpu",
            index=each["index"],
            name=each["name"],
            uuid=each["uuid"],
            compute_capability=".".join(map(str, each["cc"])),
            mig="parent" if "mig" in each else "off",
        )
        for each in inventory
    ]
    for card in inventory:
        for each in card.get("mig", ()):
            devices.append(
                Device(
                    kind="gpu",
                    index=len(devices),
                    name=each["name"],
                    uuid=each["uuid"],
                    mig="instance",
                    parent_index=card["index"],
                    gpu_instance=each["gi"],
                    compute_instance=each["ci"],
                )
            )
    return tuple(devices)


def visible(devices, value):
    env = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    numbered, notes = cuda_visibility.number(devices, env)
    shown = [device for device in numbered if device.visible_index is not None]
    return sorted(shown, key=lambda device: device.visible_index), " ".join(notes)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_list_shows_the_devices_that_cuda_shows(case):
    devices = from_inventory(case["inventory"])
    value = case["env"].get("CUDA_VISIBLE_DEVICES")
    if "error" in case:
        with pytest.raises(ProbeError, match=case["error"]):
            visible(devices, value)
        return

    shown, notes = visible(devices, value)

    assert case["visible"] == [
        device.uuid if device.mig == "instance" else device.index for device in shown
    ]
    assert case.get("note", "") in notes


@pytest.mark.parametrize(
    ("value", "indices", "note"),
    [
        ("-1", [], None),
        ("none", [], None),
        ("NoDevFiles", [], None),
        ("0,-1", [0], None),
        ("3,0", [3, 0], None),
        ("all", [], "hides every GPU. 'all' is a value of NVIDIA_VISIBLE_DEVICES"),
        ("9", [], "no GPU of this process is '9', which hides every GPU"),
        ("1,9", [1], "no GPU of this process is '9', which hides it alone"),
        ("0,,1", [0], "hides it and what follows '0'"),
        ("0,2,-1,1", [0, 2], "hides it and what follows '2'"),
        ("0,1,0", [], "names GPU 0 twice"),
        ("GPU-00000001,GPU-00000001", [], "names GPU 1 twice"),
        ("0, 1", [0, 1], "has blanks"),
        ("1gpu", [1], "has '1gpu', which CUDA reads as 1"),
        ("0,GPU-00000001", [0], "no GPU of this process is 'GPU-00000001'"),
        ("GPU-00000001,0", [1], "no GPU of this process is '0'"),
        ("GPU-7", [], "no GPU of this process is 'GPU-7'"),
        ("GPU-", [], "no GPU of this process is 'GPU-'"),
        ("MIG-GPU-00000001/7/0", [], "no GPU of this process is 'MIG-GPU-00000001/7/0'"),
        ("²", [], "hides every GPU"),
    ],
)
def test_odd_lists_are_read_as_cuda_does_and_noted(value, indices, note):
    shown, notes = visible(gpus(4), value)

    assert indices == [device.index for device in shown]
    assert note in notes if note else notes == ""


def test_an_abbreviation_that_fits_two_gpus_is_refused():
    with pytest.raises(ProbeError, match=r"which fits GPUs 0 and 1 and 2 and 3\. Write more"):
        visible(gpus(4), "GPU-0000")


def test_no_gpu_is_no_note():
    assert visible((), None) == ([], "")
    assert visible((), "0,1") == ([], "")


def test_pci_order_is_certain_and_not_noted():
    devices = (
        Device(kind="gpu", index=0, name="NVIDIA T400", compute_capability="7.5"),
        Device(kind="gpu", index=1, name="NVIDIA RTX A6000", compute_capability="8.6"),
    )

    numbered, notes = cuda_visibility.number(devices, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})

    assert [device.visible_index for device in numbered] == [0, 1]
    assert notes == ()


def test_capabilities_compare_as_numbers():
    devices = (
        Device(kind="gpu", index=0, name="a", compute_capability="9.0"),
        Device(kind="gpu", index=1, name="b", compute_capability="10.0"),
    )

    assert [device.index for device in visible(devices, None)[0]] == [1, 0]


def test_a_card_in_mig_mode_shows_its_first_instance():
    card = Device(kind="gpu", index=0, name="A100", mig="parent")
    first, second = (
        Device(kind="gpu", index=index, name="A100 MIG 1g.5gb", mig="instance", parent_index=0)
        for index in (1, 2)
    )

    shown, notes = visible((card, first, second), None)

    assert [device.index for device in shown] == [1]
    assert notes == ""


def test_a_card_in_mig_mode_without_instances_shows_nothing():
    assert visible((Device(kind="gpu", index=0, name="A100", mig="parent"),), "0") == ([], "")


def test_a_whole_card_and_an_instance_do_not_mix():
    devices = (
        Device(kind="gpu", index=0, name="A100"),
        Device(kind="gpu", index=1, name="A100", mig="parent"),
        Device(kind="gpu", index=2, name="A100 MIG 1g.5gb", mig="instance", parent_index=1),
    )

    shown, notes = visible(devices, "0,1")

    assert [device.index for device in shown] == [0]
    assert "of 2 GPUs only 0 can be used" in notes


@given(st.none() | st.text(alphabet="0123-, GPUMIGal/²", max_size=20))
def test_any_list_numbers_some_devices_from_0_without_a_gap(value):
    try:
        shown, _ = visible(gpus(3), value)
    except ProbeError:
        return

    assert list(range(len(shown))) == [device.visible_index for device in shown]
