"""doctor(): what is wrong with this machine, and the command that mends it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autostrategy import device_selection, json_values, plain_table, plan_text, planner, prober
from autostrategy.diagnosis import cluster as cluster_checks
from autostrategy.diagnosis import diagnose, gathering, software
from autostrategy.diagnosis.evidence import Evidence
from autostrategy.diagnosis.finding import Finding
from autostrategy.errors import PlanError, ProbeError
from autostrategy.facts import Facts

_STATUS = {"warning": 1, "blocked": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What stands between a machine and training on all its devices.

    `findings` come in the order of importance. `machine` is for a bug report:
    versions, devices and the planned strategy by name, free of host names,
    addresses, users and folders.
    """

    findings: tuple[Finding, ...]
    machine: Mapping[str, str]

    @property
    def status(self) -> int:
        """0 when nothing was found, 1 for warnings alone, 2 when something is blocked."""
        return max((_STATUS[finding.severity] for finding in self.findings), default=0)

    def explain(self) -> str:
        """Each finding with evidence and remedy, then the block for a bug report."""
        parts = [_finding_text(*each) for each in enumerate(self.findings, start=1)] or [
            "Nothing stands between this machine and training on all its devices."
        ]
        report = plain_table.table(self.machine.items())
        return "\n\n".join([*parts, "For a bug report:", report])

    def __str__(self) -> str:
        return self.explain()

    def to_json(self) -> str:
        """This diagnosis as JSON text."""
        return json_values.encode(self)


def doctor(
    *,
    env: Mapping[str, str] | None = None,
    root: str | Path = "/",
    hostname: str | None = None,
    cluster: bool = False,
) -> Diagnosis:
    """Look for what keeps this machine, or its cluster, from training on all its devices.

    TensorFlow is never imported here; where there is a GPU, a process of its
    own is asked what TensorFlow sees.

    Args:
        env: the environment to read, os.environ by default.
        root: a folder that stands for /. With any other than / itself only its
            files are read: no driver, library or process is asked.
        hostname: the host's name, asked of the system by default.
        cluster: whether to knock at every other task of the cluster, which
            takes up to ten seconds, and to try this task's own port.
    """
    env = dict(os.environ if env is None else env)
    root = Path(root)
    facts, errors = _probe(env, root, hostname)
    evidence = gathering.gather(facts, env=env, root=root, probe_errors=errors, cluster=cluster)
    return _without_home(examine(facts, evidence), env.get("HOME"))


def examine(facts: Facts, evidence: Evidence) -> Diagnosis:
    """The diagnosis of what was gathered before; a function of its arguments alone."""
    return Diagnosis(findings=diagnose(facts, evidence), machine=_machine(facts, evidence))


def _probe(
    env: Mapping[str, str], root: Path, hostname: str | None
) -> tuple[Facts, tuple[str, ...]]:
    """Facts without what contradicts itself, and each contradiction."""
    errors: list[str] = []
    left = dict(env)
    while True:
        try:
            return prober.probe(env=left, root=root, hostname=hostname), tuple(errors)
        except ProbeError as error:
            errors.append(str(error))
            culprit = cluster_checks.culprit(errors[-1])
            kept = {name: value for name, value in left.items() if not name.startswith(culprit)}
            if len(kept) == len(left):
                raise
            left = kept


def _machine(facts: Facts, evidence: Evidence) -> dict[str, str]:
    from autostrategy import __version__

    host, cluster = facts.host, facts.cluster
    names = [name for name in software.TENSORFLOWS if name in evidence.packages]
    rows = {
        "autostrategy": __version__,
        "system": evidence.system + (", in a container" if evidence.container else ""),
        "tensorflow": ", ".join(f"{name} {evidence.packages[name]}" for name in names) or "none",
        "keras": evidence.packages.get("keras", "none"),
        "cores, memory": f"{host.usable_cores:g} of {host.logical_cores}, "
        f"{host.memory_bytes / 2**30:.1f} GiB",
    }
    if host.driver_version:
        rows["driver"] = f"{host.driver_version}, CUDA up to {host.cuda_driver_version}"
    if cuda := [name for name in evidence.packages if name.startswith("nvidia-")]:
        rows["cuda packages"] = ", ".join(f"{name} {evidence.packages[name]}" for name in cuda)
    for name, device in device_selection.by_name(facts).items():
        capability = device.compute_capability
        rows[name] = device.name + (f", compute capability {capability}" if capability else "")
    if hidden := len(device_selection.hidden_gpus(facts)):
        rows["hidden GPUs"] = str(hidden)
    if evidence.tensorflow is not None:
        seen = evidence.tensorflow.gpus
        rows["TensorFlow sees"] = "nothing" if seen is None else f"{seen} GPUs"
    if cluster is not None:
        rows["cluster"] = (
            f"{cluster.source}: {plan_text.jobs(cluster)}; this is {cluster.task_type} "
            f"{cluster.task_index}"
        )
    try:
        rows["strategy"] = plan_text.heading(planner.plan(facts))
    except PlanError:  # whose text may name hosts
        rows["strategy"] = "none fits"
    return rows


def _finding_text(number: int, finding: Finding) -> str:
    """A finding in three parts; the remedy is never wrapped, so that it can be copied."""
    rows = plain_table.table(
        [(f"{number}. {finding.severity}", finding.what), ("   because", finding.evidence)]
    )
    return f"{rows}\n{'   mend it with'.ljust(plain_table.COLUMN)}{finding.remedy}"


def _without_home(diagnosis: Diagnosis, home: str | None) -> Diagnosis:
    """Evidence may quote paths, and people paste it; a home folder names its user."""
    if not home or home.strip("/") in ("", "root"):
        return diagnosis
    return Diagnosis(
        findings=tuple(
            Finding(
                severity=each.severity,
                what=each.what.replace(home, "~"),
                evidence=each.evidence.replace(home, "~"),
                remedy=each.remedy.replace(home, "~"),
            )
            for each in diagnosis.findings
        ),
        machine=diagnosis.machine,
    )
