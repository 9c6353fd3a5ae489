"""Tasks of jsrun, the launcher of LSF on machines with a Job Step Manager.

    JSM_NAMESPACE_RANK=3  JSM_NAMESPACE_SIZE=4  JSM_NAMESPACE_LOCAL_RANK=1
    LSB_DJOB_RANKFILE=/tmp/rankfile.5513

The rank file has a line per slot, and its first line is the launch node, where no
task runs: Lightning-AI/pytorch-lightning, fabric/plugins/environments/lsf.py. How
jsrun lays its resource sets over the slots is in no variable, so which rank runs
on which host is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autostrategy.clusters import allocations, ranks, variables
from autostrategy.facts import Launch

_NAMES = ranks.RankVariables(
    source="jsrun",
    rank="JSM_NAMESPACE_RANK",
    size="JSM_NAMESPACE_SIZE",
    local_rank="JSM_NAMESPACE_LOCAL_RANK",
)
_RANKFILE = "LSB_DJOB_RANKFILE"


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Launch | None:
    """The tasks of jsrun, None outside one and where it started only one.

    Raises:
        ProbeError: the rank is there without the size, or not below it.
    """
    if _NAMES.rank not in env:
        return None
    return ranks.launch(
        env,
        _NAMES,
        way_out="Start the script with jsrun, or unset the JSM_ variables.",
        hosts=_hosts(env, root),
    )


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Nothing to add."""
    return ()


def _hosts(env: Mapping[str, str], root: Path) -> tuple[str, ...]:
    path = env.get(_RANKFILE)
    lines = (variables.read_file(root, path) or "").split() if path else []
    return allocations.one_line_per_slot(lines[1:])[0]
