"""Behaviours from public bug reports, each in an interpreter of its own.

A case is a script that ends without an error; tests/cases/common.py has the
few lines they share.
"""

import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent / "cases"
CASES = sorted(FOLDER.glob("case_*.py"))
# What TPU rules refuse: batches that the replicas do not divide, and strings.
NOT_ON_TPU = ("case_02", "case_03", "case_09")


@pytest.mark.parametrize(
    ("strategy", "case"),
    [
        pytest.param(strategy, case, marks=marks, id=f"{strategy}-{case.stem}")
        for strategy, marks in {
            "auto": (),
            "central_storage": pytest.mark.slow,
            "tpu": pytest.mark.slow,
        }.items()
        for case in CASES
        if not (strategy == "tpu" and case.stem.startswith(NOT_ON_TPU))
    ],
)
def test_case_ends_without_an_error(strategy, case, tmp_path):
    done = subprocess.run(
        [sys.executable, str(case)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(FOLDER),
            "CUDA_VISIBLE_DEVICES": "-1",
            "STRATEGY": strategy,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
