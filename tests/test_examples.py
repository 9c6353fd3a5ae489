"""Each example runs as a user would start it."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def start(*arguments, **variables):
    """The digits example in a process of its own."""
    return subprocess.Popen(
        [sys.executable, EXAMPLES / "digits.py", *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(*processes):
    """What each process printed, once all have ended well."""
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, out[-2000:] + errors[-4000:]
    return [out for out, _ in outputs]


def accuracy(text):
    return float(re.fullmatch(r"test accuracy (0\.\d{4}|1\.0000)", text.splitlines()[-1])[1])


def free_addresses(count):
    """Loopback addresses that were free a moment ago."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_enough_to_be_read_at_once(path):
    assert len(path.read_text().splitlines()) < 60


def test_digits_are_learned_alike_on_one_device_on_two_and_on_two_workers():
    workers = free_addresses(2)
    configs = [
        json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        for index in range(2)
    ]

    (one,) = printed(start("--devices", "1"))
    (two,) = printed(start("--devices", "2"))
    chief, other = printed(*(start(TF_CONFIG=config) for config in configs))

    assert "one_device on " in one
    assert "mirrored on " in two
    assert "multi_worker_mirrored on " in chief
    for text in (one, two, chief):
        assert re.search(r"^speed +[\d,]+ examples per second$", text, re.MULTILINE)
        assert accuracy(text) >= 0.97
    assert len(other.splitlines()) == 1, "only the chief explains itself"
    assert accuracy(other) == accuracy(chief)
    assert accuracy(two) == pytest.approx(accuracy(one), abs=0.01)
    assert accuracy(chief) == pytest.approx(accuracy(two), abs=0.01)


def test_digits_take_their_options():
    (text,) = printed(start("--devices", "1", "--epochs", "1", "--batch-size", "128"))

    assert "global batch            128 rows over 1 replica" in text
    assert re.search(r"^steps +11 in 1 epochs", text, re.MULTILINE)
    assert accuracy(text) > 0.1


@pytest.mark.slow
def test_digits_are_learned_with_parameter_servers():
    jobs = dict(zip(("chief", "worker", "ps"), free_addresses(3), strict=True))
    cluster = {job: [address] for job, address in jobs.items()}
    configs = [
        json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
        for job in ("chief", "worker", "ps")
    ]

    chief, worker, server = printed(*(start(TF_CONFIG=config) for config in configs))

    assert "parameter_server on " in chief
    assert accuracy(chief) >= 0.97
    assert worker == server == ""
