"""Checks of what is installed: nothing trains without it."""

from __future__ import annotations

from collections.abc import Iterator

from autostrategy import versions
from autostrategy.diagnosis.evidence import Evidence
from autostrategy.diagnosis.finding import Finding
from autostrategy.facts import Facts
from autostrategy.hardware import rocm_visibility

# Distributions that bring the module tensorflow, in the order of their likelihood.
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly")


def tensorflow(evidence: Evidence) -> str | None:
    """The distribution that brings TensorFlow here, None when there is none."""
    return next((name for name in TENSORFLOWS if name in evidence.packages), None)


def installed(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """TensorFlow and Keras are there, in versions that the package supports."""
    keras = "keras" if "keras" in evidence.packages else None
    for module, title, name in (
        ("tensorflow", "TensorFlow", tensorflow(evidence)),
        ("keras", "Keras", keras),
    ):
        if name is None:
            yield Finding(
                severity="blocked",
                what=f"{title} is not installed.",
                evidence=f"the Python of this process has no package {module}",
                remedy=_install(module, facts, evidence),
            )
        elif refusal := versions.refusal(module, evidence.packages[name]):
            yield Finding(
                severity="blocked",
                what=f"{name} {evidence.packages[name]} is not supported.",
                evidence=refusal.partition(" Run: ")[0],
                remedy=_install(module, facts, evidence),
            )


def _install(module: str, facts: Facts, evidence: Evidence) -> str:
    command = versions.command(module)
    if module == "tensorflow" and evidence.gpus(facts) and facts.host.platform == "linux":
        return command.replace("tensorflow", "tensorflow[and-cuda]")
    return command


def metal(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """tensorflow-metal 1.2 is linked to TensorFlow 2.18 and 2.19 (tensorflow PR 126254)."""
    if "tensorflow-metal" in evidence.packages:
        yield Finding(
            severity="blocked",
            what="tensorflow-metal keeps TensorFlow 2.20 and later from being imported.",
            evidence=f"tensorflow-metal {evidence.packages['tensorflow-metal']} is installed",
            remedy="pip uninstall -y tensorflow-metal",
        )


def backend(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """Keras runs on TensorFlow."""
    name, source = evidence.keras_backend or ("tensorflow", "")
    if name != "tensorflow":
        yield Finding(
            severity="blocked",
            what=f"Keras would run on {name}, and tf.distribute trains only on TensorFlow.",
            evidence=f"{source} says {name!r}",
            remedy="export KERAS_BACKEND=tensorflow",
        )


def imported(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """TensorFlow answers at all, where it was asked."""
    answer = evidence.tensorflow
    if answer is None or answer.gpus is not None or tensorflow(evidence) is None:
        return
    name = tensorflow(evidence) or ""
    yield Finding(
        severity="blocked",
        what="TensorFlow does not start.",
        evidence="; ".join(filter(None, (answer.fault, *answer.stderr.strip().splitlines()[-2:]))),
        remedy="nvidia-smi  # must answer at once; else: sudo reboot"
        if answer.timed_out
        else f"pip install --force-reinstall {name}=={evidence.packages[name]}",
    )


def amd(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """AMD GPUs, which no supported wheel of PyPI can use."""
    cards = evidence.amd_gpus
    if not cards or "tensorflow-rocm" in evidence.packages:
        return
    shown = rocm_visibility.visible(cards, evidence.env)
    yield Finding(
        severity="warning",
        what="TensorFlow from PyPI computes on NVIDIA GPUs and not on AMD's.",
        evidence=f"{len(cards)} AMD GPUs, of which ROCm shows this process "
        f"{', '.join(map(str, shown)) or 'none'}",
        remedy="pip install tensorflow-rocm -f https://repo.radeon.com/rocm/manylinux/ "
        "# in a version that is supported",
    )
