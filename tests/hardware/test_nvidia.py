import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml, bus, card, error

from autostrategy.facts import DeviceProcess, Host, Link
from autostrategy.hardware import nvidia

CASES = json.loads((Path(__file__).parent / "nvml_cases.json").read_text())
GIBIBYTE = 2**30
HOST = Host(
    name="h",
    platform="linux",
    logical_cores=16,
    usable_cores=16.0,
    memory_bytes=128 * GIBIBYTE,
    memory_available_bytes=100 * GIBIBYTE,
)
NOT_SUPPORTED = error("NVML_ERROR_NOT_SUPPORTED")
FUNCTION_NOT_FOUND = error("NVML_ERROR_FUNCTION_NOT_FOUND")


def only(nvml):
    (device,) = nvidia.probe(HOST, nvml).devices
    return device


def test_a_card_is_described_by_what_nvml_says():
    device = only(FakeNvml(card(2)))

    assert device.name == "NVIDIA H100 80GB HBM3"
    assert device.uuid == "GPU-00000002-d72c-4106-c12f-20bd9faed9f6"
    assert device.pci_address == "0000:12:00.0"
    assert device.memory_bytes == 85520809984
    assert device.memory_free_bytes == 84900000000
    assert device.compute_capability == "9.0"
    assert (device.pcie_generation, device.pcie_width) == (5, 16)
    assert device.utilization_percent == 7
    assert (device.mig, device.unified_memory, device.processes) == ("off", False, ())
    assert device.throttle_reasons == ()


def test_versions_are_those_of_driver_and_cuda():
    found = nvidia.probe(
        HOST,
        FakeNvml(nvmlSystemGetDriverVersion="550.54.15", nvmlSystemGetCudaDriverVersion_v2=12040),
    )

    assert (found.driver_version, found.cuda_driver_version) == ("550.54.15", "12.4")


def test_no_driver_is_no_gpu_and_no_note():
    nvml = FakeNvml(nvmlInit=error("NVML_ERROR_LIBRARY_NOT_FOUND"))

    assert nvidia.probe(HOST, nvml) == nvidia.NvidiaFindings()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NVML_ERROR_DRIVER_NOT_LOADED", "modprobe nvidia"),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "updated but not reloaded: reboot"),
        ("NVML_ERROR_NO_PERMISSION", "Ask for access to /dev/nvidiactl"),
        ("NVML_ERROR_UNKNOWN", r"does not answer \(Unknown Error\).*nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_answer_is_noted_with_the_way_out(name, said):
    found = nvidia.probe(HOST, FakeNvml(card(), nvmlInit=error(name)))

    assert found.devices == ()
    (note,) = found.notes
    assert re.search(said, note)


def called(name):
    """The error that a row calls "GpuIsLost" and nvml.h NVML_ERROR_GPU_IS_LOST."""
    return error("NVML_ERROR" + re.sub("([A-Z])", r"_\1", name).upper())


def from_row(row):
    """The fake of what a row says that NVML answers."""

    def memory(version=None):
        answer = row.get("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo")
        if isinstance(answer, str):
            raise called(answer)
        return SimpleNamespace(**answer)

    answers = {}
    if "name" in row:
        answers["nvmlDeviceGetName"] = row["name"]
    if "name_raw_hex" in row:
        # As the binding does it with what the driver gave.
        answers["nvmlDeviceGetName"] = lambda: bytes.fromhex(row["name_raw_hex"]).decode()
    if "nvmlDeviceGetMemoryInfo" in row:
        answers["nvmlDeviceGetMemoryInfo"] = memory
    if "nvmlDeviceGetComputeRunningProcesses_v3" in row:
        answers["nvmlDeviceGetComputeRunningProcesses"] = called(
            row["nvmlDeviceGetComputeRunningProcesses_v3"]
        )
    handles = row.get("handles", ["ok"] * row.get("count", 0))
    cards = [
        card(slot, **answers) if handle == "ok" else called(handle)
        for slot, handle in enumerate(handles)
    ]
    system = {"nvmlInit": called(row["init"])} if "init" in row else {}
    return FakeNvml(*cards, **system)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_what_nvml_refuses_is_told_and_the_rest_is_kept(case):
    """`expect` is in the words of the row; `note` is what is said of it here."""
    nvml = from_row(case["nvml"])
    expected = dict(case["expect"])

    found = nvidia.probe(HOST, nvml)

    assert re.search(case["note"], " ".join(found.notes)) if "note" in case else not found.notes
    if reason := expected.pop("reason", None):
        assert error(nvidia.fault(nvml)).value == called(reason.partition("_")[2]).value
    assert expected.pop("warn", None) is None or "note" in case
    gpus = expected.pop("gpus")
    assert len(found.devices) == (gpus or 0)
    if not gpus:
        assert expected == {}
        return
    (device,) = found.devices
    unnamed = f"The name of GPU {device.index} cannot be read" in " ".join(found.notes)
    seen = {
        "name": None if unnamed else device.name,
        "memory_total": None if device.unified_memory else device.memory_bytes,
        "memory_source": "system" if device.memory_bytes == HOST.memory_bytes else "card",
        "processes": device.processes,
    }
    assert {name: seen[name] for name in expected} == expected


def test_nvml_that_starts_has_no_fault():
    assert nvidia.fault(FakeNvml(card())) is None


def test_a_fault_that_nobody_expected_is_told_by_its_text():
    assert nvidia.fault(FakeNvml(nvmlInit=error("NVML_ERROR_UNKNOWN"))) == "Unknown Error"


def test_without_a_binding_no_fault_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert nvidia.fault() is None


def test_a_missing_binding_is_noted(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert "pip install nvidia-ml-py" in nvidia.probe(HOST).notes[0]


def test_a_count_that_fails_is_noted():
    found = nvidia.probe(HOST, FakeNvml(nvmlDeviceGetCount=error("NVML_ERROR_UNKNOWN")))

    assert found.devices == ()
    assert "NVML does not count the GPUs (Unknown Error)" in found.notes[0]


def test_a_lost_card_is_noted_and_does_not_hide_the_others():
    nvml = FakeNvml(error("NVML_ERROR_GPU_IS_LOST"), card(1), card(2))

    found = nvidia.probe(HOST, nvml)

    assert [device.index for device in found.devices] == [1, 2]
    assert found.notes == (
        "GPU 0 of 3 cannot be read (GPU is lost). It fell off the bus: reboot, and see the "
        "kernel log for 'Xid 79'.",
    )
    assert nvml.shut_down


def test_a_card_of_another_job_is_noted_as_no_fault():
    nvml = FakeNvml(card(0), error("NVML_ERROR_NO_PERMISSION"))

    found = nvidia.probe(HOST, nvml)

    assert [device.index for device in found.devices] == [0]
    assert found.notes == ("GPU 1 of 2 is kept from this process's job or container.",)


def test_a_card_that_answers_nothing_is_still_there():
    found = nvidia.probe(HOST, FakeNvml({}, card(1)))

    assert len(found.devices) == 2
    assert found.devices[0].uuid is None
    assert found.notes == ("The name of GPU 0 cannot be read.",)


def test_a_name_that_is_no_utf8_is_noted():
    garbage = UnicodeDecodeError("utf-8", b"\xf8\xff", 0, 1, "invalid start byte")

    found = nvidia.probe(HOST, FakeNvml(card(nvmlDeviceGetName=garbage)))

    assert found.devices[0].name == "NVIDIA GPU"
    assert found.notes == ("The name of GPU 0 cannot be read: it is not UTF-8.",)


def test_an_old_binding_answers_in_bytes():
    device = only(
        FakeNvml(
            card(
                nvmlDeviceGetName=b"Tesla K80",
                nvmlDeviceGetPciInfo=SimpleNamespace(busId=b"00000000:04:00.0"),
            )
        )
    )

    assert (device.name, device.pci_address) == ("Tesla K80", "0000:04:00.0")


def test_an_old_driver_answers_the_first_version_of_memory():
    def memory(version=None):
        if version:
            raise FUNCTION_NOT_FOUND
        return SimpleNamespace(total=11554717696, free=11000000000)

    device = only(
        FakeNvml(
            card(
                nvmlDeviceGetMemoryInfo=memory,
                nvmlDeviceGetComputeRunningProcesses=FUNCTION_NOT_FOUND,
            )
        )
    )

    assert device.memory_bytes == 11554717696
    assert device.processes is None


def test_a_card_without_memory_of_its_own_has_the_hosts():
    """GB10 and Jetson answer neither version."""
    device = only(
        FakeNvml(card(nvmlDeviceGetName="NVIDIA GB10", nvmlDeviceGetMemoryInfo=NOT_SUPPORTED))
    )

    assert device.unified_memory
    assert device.memory_bytes == HOST.memory_bytes
    assert device.memory_free_bytes == HOST.memory_available_bytes


def test_memory_that_may_not_be_told_is_unknown_and_not_the_hosts():
    device = only(FakeNvml(card(nvmlDeviceGetMemoryInfo=error("NVML_ERROR_NO_PERMISSION"))))

    assert (device.memory_bytes, device.unified_memory) == (None, False)


def test_other_processes_are_told_with_memory_and_name():
    def run(pid, memory):
        return SimpleNamespace(pid=pid, usedGpuMemory=memory)

    def name(pid):
        if pid == 2:
            raise error("NVML_ERROR_NO_PERMISSION")
        return "/usr/bin/python3"

    device = only(
        FakeNvml(
            card(
                nvmlDeviceGetComputeRunningProcesses=[
                    run(1, 9 * GIBIBYTE),
                    run(2, None),
                    run(os.getpid(), GIBIBYTE),
                ]
            ),
            nvmlSystemGetProcessName=name,
        )
    )

    assert device.processes == (
        DeviceProcess(pid=1, memory_bytes=9 * GIBIBYTE, name="python3"),
        DeviceProcess(pid=2),
    )


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0, ()),
        (1, ()),
        (0x2, ()),
        (0x4, ("power cap",)),
        (0x60, ("temperature", "hardware temperature limit")),
        (0x88, ("hardware slowdown", "power supply")),
    ],
)
def test_throttling_is_told_by_reason(bits, reasons):
    assert (
        reasons
        == only(FakeNvml(card(nvmlDeviceGetCurrentClocksEventReasons=bits))).throttle_reasons
    )


def test_throttling_is_asked_by_its_old_name_too():
    device = only(
        FakeNvml(
            card(
                nvmlDeviceGetCurrentClocksEventReasons=FUNCTION_NOT_FOUND,
                nvmlDeviceGetCurrentClocksThrottleReasons=0x4,
            )
        )
    )

    assert device.throttle_reasons == ("power cap",)


def test_mig_instances_follow_the_cards_and_name_their_own():
    instances = {
        0: {
            "nvmlDeviceGetName": "NVIDIA A100 MIG 1g.5gb",
            "nvmlDeviceGetUUID": "MIG-4200b2c0",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=5 * GIBIBYTE, free=5 * GIBIBYTE),
            "nvmlDeviceGetGpuInstanceId": 7,
            "nvmlDeviceGetComputeInstanceId": 0,
        },
        2: {"nvmlDeviceGetName": "NVIDIA A100 MIG 2g.10gb"},
    }

    def instance(slot):
        if slot not in instances:
            raise error("NVML_ERROR_UNKNOWN")
        return instances[slot]

    parent = card(
        nvmlDeviceGetMigMode=[1, 1],
        nvmlDeviceGetMaxMigDeviceCount=7,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
    )

    found = nvidia.probe(HOST, FakeNvml(parent, card(1)))

    assert [(each.index, each.mig, each.parent_index) for each in found.devices] == [
        (0, "parent", None),
        (1, "off", None),
        (2, "instance", 0),
        (3, "instance", 0),
    ]
    first = found.devices[2]
    assert (first.uuid, first.gpu_instance, first.compute_instance) == ("MIG-4200b2c0", 7, 0)
    assert (first.memory_bytes, first.compute_capability) == (5 * GIBIBYTE, "9.0")
    assert found.devices[3].memory_bytes is None


@pytest.mark.parametrize(
    ("level", "kind"),
    [
        (0, "same_board"),
        (10, "pcie_switch"),
        (20, "pcie_switch"),
        (30, "host_bridge"),
        (40, "numa"),
        (50, "system"),
    ],
)
def test_cards_without_nvlink_are_joined_by_their_pci_ancestor(level, kind):
    cards = [card(slot, nvmlDeviceGetTopologyCommonAncestor=lambda _: level) for slot in (0, 1)]

    (link,) = nvidia.probe(HOST, FakeNvml(*cards)).links

    assert link == Link(first=0, second=1, kind=kind, nvlinks=0, peer_access=True)


def nvlinks(*remotes):
    """Answers of a card whose link i leads to the slot remotes[i], "switch", or None if down."""

    def known(link):
        if link >= len(remotes):
            raise NOT_SUPPORTED
        return remotes[link]

    return {
        "nvmlDeviceGetNvLinkState": lambda link: int(known(link) is not None),
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda link: 2 if known(link) == "switch" else 0,
        "nvmlDeviceGetNvLinkRemotePciInfo": lambda link: SimpleNamespace(busId=bus(known(link))),
        "nvmlDeviceGetTopologyCommonAncestor": lambda _: 40,
        "nvmlDeviceGetP2PStatus": lambda _, __: 0,
    }


def test_nvlinks_are_counted_for_each_pair():
    cards = (
        card(0, **nvlinks(1, 1, 2, None)),
        card(1, **nvlinks(0, 0)),
        card(2, **nvlinks(0)),
    )

    links = nvidia.probe(HOST, FakeNvml(*cards)).links

    assert [(link.first, link.second, link.kind, link.nvlinks) for link in links] == [
        (0, 1, "nvlink", 2),
        (0, 2, "nvlink", 1),
        (1, 2, "numa", 0),
    ]


def test_cards_on_a_switch_reach_each_other_by_all_their_links():
    cards = (card(slot, **nvlinks(*["switch"] * 18)) for slot in range(8))

    links = nvidia.probe(HOST, FakeNvml(*cards)).links

    assert len(links) == 28
    assert {(link.kind, link.nvlinks) for link in links} == {("nvswitch", 18)}


@pytest.mark.parametrize(
    ("status", "peer_access"),
    [(0, True), (3, False), (NOT_SUPPORTED, None)],
)
def test_peer_access_is_read_and_write(status, peer_access):
    def answer(_, capability):
        assert isinstance(capability, int)
        if isinstance(status, Exception):
            raise status
        return status

    cards = [card(slot, nvmlDeviceGetP2PStatus=answer) for slot in (0, 1)]
    for each in cards:
        each["nvmlDeviceGetTopologyCommonAncestor"] = lambda _: 30

    (link,) = nvidia.probe(HOST, FakeNvml(*cards)).links

    assert link.peer_access is peer_access


def test_a_pair_of_which_nothing_is_known_has_no_link():
    cards = [
        card(slot, nvmlDeviceGetTopologyCommonAncestor=NOT_SUPPORTED, nvmlDeviceGetP2PStatus=0)
        for slot in (0, 1)
    ]

    assert nvidia.probe(HOST, FakeNvml(*cards)).links == ()


@pytest.mark.parametrize("failure", [TypeError("x"), AttributeError("x"), NOT_SUPPORTED])
def test_whichever_call_fails_the_card_remains(failure):
    healthy = card()
    for name in healthy:
        found = nvidia.probe(HOST, FakeNvml({**healthy, name: failure}, card(1)))

        assert [device.index for device in found.devices] == [0, 1]


def test_this_machine_is_read_without_an_error():
    """With a GPU or without one, the real binding is asked."""
    found = nvidia.probe(HOST)

    assert all(device.kind == "gpu" for device in found.devices)
