import json
from pathlib import Path

import pytest

from autostrategy.hardware import rocm_visibility

CASES = json.loads((Path(__file__).parent / "rocm_cases.json").read_text())
FOUR = ("GPU-a", "GPU-b", "GPU-c", "")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_each_layer_numbers_what_the_one_below_it_left(case):
    gpus = [each.get("uuid", "") for each in case["inventory"]]

    shown = rocm_visibility.visible(gpus, case["env"])

    assert {"visible_devices": list(shown), "local_devices": len(shown)} == case["expect"]


@pytest.mark.parametrize(
    ("lower", "upper", "shown"),
    [
        (None, None, (0, 1, 2, 3)),
        ("2,0", None, (2, 0)),
        ("GPU-c,1", None, (2, 1)),
        ("GPU-z,1", None, ()),
        ("", None, ()),
        (None, "-1", ()),
        (None, "3,9,0", (3,)),
        ("3,2,1", "2,0", (1, 3)),
        ("0", "0,1", (0,)),
    ],
)
def test_lists_are_read_as_by_cuda(lower, upper, shown):
    env = {"ROCR_VISIBLE_DEVICES": lower, "HIP_VISIBLE_DEVICES": upper}

    assert shown == rocm_visibility.visible(
        FOUR, {name: value for name, value in env.items() if value is not None}
    )


def test_hip_comes_before_the_name_that_it_took_from_cuda():
    assert rocm_visibility.visible(FOUR, {"CUDA_VISIBLE_DEVICES": "1"}) == (1,)
    both = {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "2"}
    assert rocm_visibility.visible(FOUR, both) == (2,)
