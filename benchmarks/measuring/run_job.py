"""The entry of each measuring process: `python -m measuring.run_job JOB`, with benchmarks/ here.

What a contender needs is imported only once its job is known, since no
interpreter has all of it, and since a pinned process must not start a thread
before it is pinned.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from measuring.job import Job, perform

_MODULES = {
    "loop": "measuring.loops",
    "torch": "measuring.torch_twin",
}


def _run(job: Job) -> dict[str, Any]:
    return importlib.import_module(_MODULES.get(job.contender, "measuring.fits")).run(job)


if __name__ == "__main__":
    perform(sys.argv[1], _run)
