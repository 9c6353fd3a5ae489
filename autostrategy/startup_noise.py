"""Keep what TensorFlow says while it is imported off the terminal, but for its errors.

TF_CPP_MIN_LOG_LEVEL=2 hides information and warnings once TensorFlow is up.
Its shared libraries log earlier than they read that (measured with 2.21, seen
from 2.17 on: tensorflow/tensorflow#79029, #100442), so standard error passes
through a filter for the length of the import. Delete this file when
`TF_CPP_MIN_LOG_LEVEL=2 python -c "import tensorflow"` is silent.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

# A process of its own, so that the last words of an import that ends in a crash
# still arrive. What is dropped:
#   I0000 00:00:1796060982.182034    6922 port.cc:153] oneDNN custom ...
#   2025-09-17 14:44:05.157831: I external/local_xla/xla/tsl/cuda/cudart_stub.cc:32] ...
#   WARNING: All log messages before absl::InitializeLog() is called are ...
#   To enable the following instructions: AVX2 ...
_FILTER = r"""
import re, sys
noise = re.compile(
    rb"[IW]\d{4} [\d:.]+ +\d+ \S+:\d+\] "
    rb"|[\d-]{10} [\d:.]+: [IW] \S+:\d+\] "
    rb"|WARNING: All log messages before absl::InitializeLog"
    rb"|To enable the following instructions: "
)
for line in sys.stdin.buffer:
    if not noise.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


def silence_import() -> None:
    """Filter standard error during the first `import tensorflow`, whoever imports it."""
    if "tensorflow" not in sys.modules:
        finder: Any = types.SimpleNamespace()
        finder.find_spec = lambda name, path=None, target=None: _find_spec(finder, name)
        sys.meta_path.insert(0, finder)


def _find_spec(finder: Any, name: str) -> importlib.machinery.ModuleSpec | None:
    if name != "tensorflow":
        return None
    sys.meta_path.remove(finder)
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return spec
    loader: Any = spec.loader
    load = loader.exec_module

    def load_quietly(module: types.ModuleType) -> None:
        with filtered():
            load(module)

    loader.exec_module = load_quietly
    return spec


@contextlib.contextmanager
def filtered() -> Iterator[None]:
    """Standard error without TensorFlow's information and warnings, for C++ code as well."""
    sys.stderr.flush()
    terminal = os.dup(2)
    # -I and -S: the user's paths and site packages are none of the filter's business.
    command = [sys.executable, "-I", "-S", "-c", _FILTER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=terminal)
    assert process.stdin is not None
    os.dup2(process.stdin.fileno(), 2)
    process.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)
        process.wait()
