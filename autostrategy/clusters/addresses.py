"""Addresses of tasks where an environment gives hosts and no ports.

Every task must arrive at the same ports without talking. AUTOSTRATEGY_PORT, set
alike in all tasks, overrides the first port of a host.

One task per host (SageMaker, TrainJob, JobSet): a host there is a container with
its own network, so one port serves all. It is 2222, that of Kubeflow's TFJob and
of Vertex AI.

Several tasks per host (Slurm): two jobs on one host must not collide. Slots of
16 ports between 12000 and 29999 (below Linux's ephemeral ports) are chosen by
job and step number; a task uses its slot's first port plus its number on the
host, and the 17th task of a host reaches into the next slot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autostrategy.clusters import variables
from autostrategy.errors import ProbeError

PORT = "AUTOSTRATEGY_PORT"

# As many as Slurm's hostlist.c allows in one range: no list made from a count
# alone may fill the memory.
MAXIMUM_HOSTS = 65536

_ONE_PER_HOST = 2222
_FIRST_PORT = 12000
_SLOT_PORTS = 16
_SLOTS = 1125

_WAY_OUT = f"Set {PORT} to a port that is free on all hosts, or unset it."


def port_of_one_task(env: Mapping[str, str], *, given: int = _ONE_PER_HOST) -> int:
    """The port of the only task on a host: AUTOSTRATEGY_PORT, else `given`."""
    return _checked(own_port(env) or given, most_tasks=1)


def first_port_of_job(env: Mapping[str, str], *, job: int, step: int, most_tasks: int) -> int:
    """The port of the first task on each host, apart from those of other jobs.

    Args:
        env: the environment, for AUTOSTRATEGY_PORT.
        job: number of the job.
        step: number of the step in its job.
        most_tasks: how many tasks the fullest host has.
    """
    # 101 sets the steps of a job apart from the first steps of the next jobs,
    # which often share its hosts.
    slot = (job + 101 * step) % _SLOTS
    return _checked(own_port(env) or _FIRST_PORT + slot * _SLOT_PORTS, most_tasks=most_tasks)


def join(variable: str, host: str, port: int) -> str:
    """'host:port', with an IPv6 address in brackets.

    Raises:
        ProbeError: what `variable` gives as a host cannot be the name of one.
    """
    if re.fullmatch(r"[A-Za-z0-9_.-]+", host):
        return f"{host}:{port}"
    bare = host.removeprefix("[").removesuffix("]")
    if ":" in bare and re.fullmatch(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?", bare):
        return f"[{bare}]:{port}"
    raise ProbeError(
        f"{variable} must name a host by letters, digits, '.', '-' and '_', or by its address. "
        f"Received: {variables.quote(host)}. Give its plain name, without scheme, port or blank."
    )


def parse(variable: str, text: str) -> str:
    """The 'host:port' that `variable` holds, as `join` writes it.

    Raises:
        ProbeError: there is no port, or `join` refuses the host.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ProbeError(
            f"{variable} must be host:port with a port from 1 to 65535. "
            f"Received: {variables.quote(text)}. Correct it in all processes alike."
        )
    return join(variable, host, int(port))


def own_port(env: Mapping[str, str]) -> int | None:
    """AUTOSTRATEGY_PORT, None where it is not set."""
    return variables.number(env, PORT, least=1, way_out=_WAY_OUT) if env.get(PORT) else None


def _checked(port: int, *, most_tasks: int) -> int:
    if not 1 <= port <= 65536 - most_tasks:
        raise ProbeError(
            f"The first port of a host must be from 1 to {65536 - most_tasks}, with room for its "
            f"{most_tasks} tasks. Received: {port}. Set {PORT} to such a port in all tasks."
        )
    return port
