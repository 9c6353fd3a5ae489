"""TensorFlow's information and warnings stay off the terminal; everything else arrives."""

import os
import subprocess
import sys

import pytest

NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1796060294.138373    5530 port.cc:153] oneDNN custom operations are on.
W0000 00:00:1796060294.138373    5530 gpu_device.cc:2342] Cannot dlopen some GPU libraries.
2025-09-17 14:44:05.157831: I external/local_xla/xla/tsl/cuda/cudart_stub.cc:32] Could not find
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.
"""

NEWS = """\
E0000 00:00:1796060971.413725    6899 cuda_platform.cc:52] failed call to cuInit
2025-09-17 14:44:05.176998: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:467] no
I am a line of the user
F0000 00:00:1796060971.413725    6899 env.cc:12] Check failed
"""


def run(code, folder):
    """Run `code` where `tensorflow` is a file in `folder`."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
        timeout=60,
    )


@pytest.mark.parametrize(
    ("ending", "status"), [("", 0), ("raise SystemExit(3)", 3), ("os.abort()", -6)]
)
def test_an_import_loses_its_noise_and_no_error_even_when_it_crashes(ending, status, tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        f"import os\nos.write(2, {(NOISE + NEWS).encode()!r})\n{ending}\n"
    )
    code = "from autostrategy import startup_noise as n; n.silence_import(); import tensorflow"

    done = run(code, tmp_path)

    assert (done.returncode, done.stderr) == (status, NEWS)


def test_after_the_import_standard_error_is_the_terminal_again(tmp_path):
    (tmp_path / "tensorflow.py").write_text("")
    code = (
        "import os, sys; from autostrategy import startup_noise as n; n.silence_import();"
        "before, finders = os.fstat(2), len(sys.meta_path); import tensorflow; import json;"
        "assert os.fstat(2) == before and len(sys.meta_path) == finders - 1;"
        f"os.write(2, {NOISE.encode()!r})"
    )

    assert run(code, tmp_path).stderr == NOISE


def test_a_missing_tensorflow_is_still_missing(tmp_path):
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p];"
        f"sys.path.insert(0, {os.getcwd()!r});"
        "from autostrategy import startup_noise as n; n.silence_import(); import tensorflow"
    )

    assert "ModuleNotFoundError: No module named 'tensorflow'" in run(code, tmp_path).stderr
