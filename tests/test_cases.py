"""Behaviours from public bug reports, each in an interpreter of its own.

A case is a script that ends without an error; tests/cases/common.py has the
few lines they share. Two run at a time: importing TensorFlow keeps one core busy.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent / "cases"
CASES = sorted(FOLDER.glob("case_*.py"))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, request):
    """A future of the ended process for each selected case."""
    selected = {item.callspec.params["case"] for item in request.session.items if _is_case(item)}

    def run(case):
        return subprocess.run(
            [sys.executable, str(case)],
            cwd=tmp_path_factory.mktemp(case.stem),
            env={**os.environ, "PYTHONPATH": str(FOLDER), "CUDA_VISIBLE_DEVICES": "-1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        yield {case: pool.submit(run, case) for case in CASES if case in selected}


def _is_case(item):
    return item.fspath == __file__


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_case_ends_without_an_error(case, outcomes):
    done = outcomes[case].result()

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
