"""Checks of the cluster: what the environment says of it, and who answers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autostrategy.diagnosis.evidence import Evidence
from autostrategy.diagnosis.finding import Finding
from autostrategy.facts import Facts

# Variables that probing may complain of, by how they begin, and what unsets them.
_CULPRITS = {
    "TF_CONFIG": "unset TF_CONFIG",
    "CUDA_VISIBLE_DEVICES": "unset CUDA_VISIBLE_DEVICES",
    "TPU_WORKER_ID": "unset TPU_WORKER_ID TPU_WORKER_HOSTNAMES",
    "SLURM_": "unset ${!SLURM_*}  # and start with srun inside the job",
}

_LOOPBACK = ("localhost", "127.", "[::1]")


def contradictions(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """The environment could be read."""
    for text in evidence.probe_errors:
        variable = culprit(text)
        name = "the Slurm step" if variable == "SLURM_" else variable
        yield Finding(
            severity="blocked",
            what=f"Nothing can be planned, because {name} contradicts itself.",
            evidence=text,
            remedy=_CULPRITS[variable],
        )


def culprit(text: str) -> str:
    """How the variables begin that a ProbeError speaks of; what is named first counts."""
    named = re.search("|".join(_CULPRITS), text)
    return named.group() if named else "SLURM_"  # whose texts speak of a host list


def there(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """There is a cluster, where somebody asks about it."""
    if evidence.cluster_wanted and facts.cluster is None and not evidence.probe_errors:
        yield Finding(
            severity="warning",
            what="There is no cluster whose tasks could be knocked at.",
            evidence="the environment has neither a TF_CONFIG with a cluster nor a Slurm step",
            remedy="srun autostrategy doctor --cluster  # or set TF_CONFIG, as for the run",
        )


def reachable(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """Every other task has a name that resolves and a host that answers."""
    refused = {where: why for where, why in evidence.unanswered.items() if "refused" in why}
    silent = {where: why for where, why in evidence.unanswered.items() if where not in refused}
    unresolved = [where for where, why in silent.items() if "resolve" in why]
    if silent:
        host = next(iter(unresolved or silent)).rpartition(":")[0].strip("[]")
        port = next(iter(silent)).rpartition(":")[2]
        yield Finding(
            severity="blocked",
            what=f"{_tasks(len(silent))} of the cluster cannot be reached from here.",
            evidence=", ".join(f"{where} ({why})" for where, why in silent.items()),
            remedy=f"getent hosts {host}  # it must print an address; correct the cluster or DNS"
            if unresolved
            else f"nc -zv {host} {port}  # from here; open this port in the firewall of {host}",
        )
    if refused:
        yield Finding(
            severity="warning",
            what=f"{_tasks(len(refused))} of the cluster {'has' if len(refused) == 1 else 'have'} "
            "not started: the host answers, and nobody listens.",
            evidence=", ".join(f"{where} ({why})" for where, why in refused.items()),
            remedy="autostrategy run train.py  # on each of these hosts, with its own TF_CONFIG",
        )


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def own_port(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """This task's own port is free."""
    if evidence.cannot_listen and (cluster := facts.cluster):
        own = cluster.addresses(cluster.task_type)[cluster.task_index]
        yield Finding(
            severity="blocked",
            what=f"This task cannot listen at its own address, {own}.",
            evidence=evidence.cannot_listen,
            remedy=f"ss -ltnp 'sport = :{own.rpartition(':')[2]}'  # names the process to end",
        )


def leftovers(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """TF_CONFIG is of this run: not empty, without a cluster, or of another host."""
    if "TF_CONFIG" not in evidence.env or evidence.probe_errors:
        return
    cluster = facts.cluster
    if cluster is None:
        empty = not evidence.env["TF_CONFIG"].strip()
        if empty or any("names a task but no cluster" in note for note in facts.notes):
            yield Finding(
                severity="warning",
                what="TF_CONFIG is empty, and plain TensorFlow fails on it."
                if empty
                else "TF_CONFIG names a task and no cluster, so it is left aside.",
                evidence=f"TF_CONFIG={evidence.env['TF_CONFIG'][:200]!r}",
                remedy="unset TF_CONFIG",
            )
        return
    addresses = cluster.addresses(cluster.task_type)
    if cluster.source != "TF_CONFIG" or not addresses:
        return
    own = addresses[cluster.task_index]
    if not _may_be(own.rpartition(":")[0], facts.host.name):
        yield Finding(
            severity="warning",
            what="TF_CONFIG seems to be left from another host or job.",
            evidence=f"it says that this task is at {own}, and this host is {facts.host.name}",
            remedy="unset TF_CONFIG",
        )


def _may_be(host: str, name: str) -> bool:
    """Whether `host` may be an address of the host called `name`: n1 is n1.lab and n1-ib."""
    if host.startswith(_LOOPBACK) or host.startswith("[") or host.replace(".", "").isdigit():
        return True
    one, other = host.lower().partition(".")[0], name.lower().partition(".")[0]
    return one.startswith(other) or other.startswith(one)
