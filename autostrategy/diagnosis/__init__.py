"""What stands between a machine and training on all its devices, and what mends it.

`gathering.gather` looks, once; a check is a function of facts and evidence
that looks at nothing else. To add one, write it where its family is and put it
into `CHECKS` where its finding matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autostrategy.diagnosis import cluster, gpus, resources, software
from autostrategy.diagnosis.evidence import Evidence
from autostrategy.diagnosis.finding import Finding
from autostrategy.facts import Facts

Check = Callable[[Facts, Evidence], Iterable[Finding]]

# In the order of importance: what keeps anything from being trained, what keeps
# a cluster from starting, what keeps a GPU from being used, and what only
# makes a run slower or likelier to fail.
CHECKS: tuple[Check, ...] = (
    software.installed,
    software.metal,
    software.backend,
    software.imported,
    cluster.contradictions,
    gpus.path,
    cluster.there,
    cluster.reachable,
    cluster.own_port,
    resources.cudnn,
    resources.notes,
    cluster.leftovers,
    software.amd,
    resources.libdevice,
    resources.memory,
    resources.shared_memory,
    resources.open_files,
)


def diagnose(facts: Facts, evidence: Evidence) -> tuple[Finding, ...]:
    """Everything that `CHECKS` find: what blocks before what warns, else in their order."""
    found = [finding for check in CHECKS for finding in check(facts, evidence)]
    return tuple(sorted(found, key=lambda finding: finding.severity != "blocked"))
