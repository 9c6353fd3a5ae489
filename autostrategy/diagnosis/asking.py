"""Questions that load CUDA or TensorFlow, each asked in a process of its own.

So the process that asks stays free to fork and to choose its devices, a crash
is an answer too, and a library that one question loaded is not found by the
next one merely because it is loaded already.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autostrategy.diagnosis.evidence import TensorFlowAnswer

# What TensorFlow 2.20 and 2.21 open when they look for GPUs
# (third_party/xla/xla/tsl/cuda/*_stub.cc), named as CUDA 12 and cuDNN 9 are.
CUDA_LIBRARIES = (
    "libcuda.so.1",
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)

_SECONDS = 120.0

# pip's packages put libraries into site-packages/nvidia/*/lib, where
# TensorFlow looks by its run path.
_LIBRARIES = """
import ctypes, glob, json, os, sys
missing, cudnn = {}, None
for name in sys.argv[1:]:
    folders = [os.path.join(each, "nvidia", "*", "lib", name) for each in sys.path]
    for path in (name, *(found for each in folders for found in glob.glob(each))):
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            missing[name] = str(error)
            continue
        missing.pop(name, None)
        if name.startswith("libcudnn"):
            cudnn = library.cudnnGetVersion()
        break
print(json.dumps({"missing": missing, "cudnn": cudnn}))
"""

_TENSORFLOW = """
import json
import tensorflow as tf
build = tf.sysconfig.get_build_info()
print(json.dumps({
    "gpus": len(tf.config.list_physical_devices("GPU")),
    "cuda": tf.test.is_built_with_cuda(),
    "capabilities": list(build.get("cuda_compute_capabilities") or ()),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    value: Any = None
    stderr: str = ""
    fault: str | None = None
    timed_out: bool = False


def libraries(
    env: Mapping[str, str],
) -> tuple[Mapping[str, str] | None, tuple[int, ...] | None]:
    """CUDA libraries that cannot be loaded, with the reason, and the version of cuDNN."""
    reply = _ask(_LIBRARIES, CUDA_LIBRARIES, env, _SECONDS)
    if reply.value is None:
        return None, None
    number = reply.value["cudnn"]
    # 90300 is 9.3.0 (cudnn_version.h).
    version = (number // 10000, number // 100 % 100, number % 100) if number else None
    return reply.value["missing"], version


def tensorflow(env: Mapping[str, str], *, seconds: float = _SECONDS) -> TensorFlowAnswer:
    """How many GPUs TensorFlow sees, and how it was built."""
    reply = _ask(_TENSORFLOW, (), env, seconds)
    if reply.value is None:
        return TensorFlowAnswer(stderr=reply.stderr, fault=reply.fault, timed_out=reply.timed_out)
    return TensorFlowAnswer(
        gpus=reply.value["gpus"],
        built_with_cuda=reply.value["cuda"],
        compute_capabilities=tuple(reply.value["capabilities"]),
        stderr=reply.stderr,
    )


def _ask(code: str, arguments: tuple[str, ...], env: Mapping[str, str], seconds: float) -> _Reply:
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            # The reasons why no GPU was found are information to TensorFlow.
            env={**env, "TF_CPP_MIN_LOG_LEVEL": "0"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return _Reply(fault=f"it did not answer within {seconds:g} s", timed_out=True)
    except OSError as error:
        return _Reply(fault=str(error))
    try:
        return _Reply(value=json.loads(done.stdout.splitlines()[-1]), stderr=done.stderr)
    except (IndexError, ValueError):
        return _Reply(stderr=done.stderr, fault=f"it ended with status {done.returncode}")
