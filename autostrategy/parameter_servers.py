"""The tasks of a parameter-server cluster: one leads, the others serve until it ends.

    chief           waits until all others listen, connects, schedules steps
    worker, ps      start TensorFlow's server, wait for word that the chief ends

TensorFlow's `Server.join` never returns, so whoever started the tasks had to
kill them. Here the chief tells each task when its process ends, through
TensorFlow's own connections: it runs a Python function that the task has put
into its table of functions (`tensorflow_internals.answer_to`). A chief that
was killed says nothing; then its address stops answering.

TensorFlow's servers have no authentication and listen on every interface of
the host (`tf.distribute.Server`): whoever reaches a port can run anything.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
from typing import NoReturn

import tensorflow as tf

from autostrategy import rendezvous, tensorflow_internals
from autostrategy.errors import LaunchError
from autostrategy.facts import Cluster

_END = "autostrategy_end"
# What a task answers with its index.
NUMBER = "autostrategy_number"
_ENDED_WELL, _FAILED = 0, 1
# How long the chief waits for a task to hear that it ends, in seconds.
_TELL_SECONDS = 5.0
# How often a task looks whether the chief is still there, and for how long it
# may be silent: between its first knock and TensorFlow's server nobody listens.
_LOOK_SECONDS = 1.0
_SILENT_SECONDS = 10.0


def connect(cluster: Cluster, *, timeout: float) -> tf.distribute.Strategy:
    """The strategy of the chief, once every worker and server of `cluster` listens.

    When this process ends, the tasks are told to end too.

    Raises:
        LaunchError: a task did not appear within `timeout` seconds.
    """
    rendezvous.meet(cluster, timeout=timeout, jobs=("worker", "ps"))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    atexit.register(functools.partial(_end_all, cluster))
    return strategy


def serve(cluster: Cluster, *, timeout: float) -> NoReturn:
    """Serve the chief as a worker or server until it ends, then end this process.

    Raises:
        SystemExit: status 0 when the chief ended well, 1 when it failed.
        LaunchError: the chief did not appear within `timeout` seconds, or its
            process was lost.
    """
    ended = threading.Event()
    statuses: list[int] = []

    def end(status: int) -> int:
        statuses.append(int(status))
        ended.set()
        return 0

    tensorflow_internals.answer_to(_END, end)
    tensorflow_internals.answer_to(NUMBER, lambda _: cluster.task_index)
    addresses = {job.name: list(job.addresses) for job in cluster.jobs if job.name != "evaluator"}
    server = tf.distribute.Server(
        tf.train.ClusterSpec(addresses),
        job_name=cluster.task_type,
        task_index=cluster.task_index,
        protocol="grpc",
    )
    (chief,) = cluster.addresses("chief")
    _wait_for_end(chief, ended, timeout)
    # The answer to the chief is still on its way.
    time.sleep(0.2)
    del server
    if statuses[0] == _ENDED_WELL:
        raise SystemExit(0)
    sys.stderr.write(f"autostrategy: the chief at {chief} ended with an error.\n")
    raise SystemExit(1)


def _wait_for_end(chief: str, ended: threading.Event, timeout: float) -> None:
    seen = False
    last = time.monotonic()
    while not ended.wait(_LOOK_SECONDS):
        if rendezvous.knock(chief) is None:
            seen, last = True, time.monotonic()
        silent = time.monotonic() - last
        if not seen and silent > timeout:
            raise LaunchError(
                f"The chief must start within {timeout:g} s. Received: no answer from {chief}. "
                "Start the chief, check the address and firewalls, or allow more time with "
                "AUTOSTRATEGY_START_TIMEOUT."
            )
        if seen and silent > _SILENT_SECONDS:
            raise LaunchError(
                f"The chief must stay alive while its tasks serve it. Received: no answer from "
                f"{chief} for {_SILENT_SECONDS:g} s. Look at its output for the reason."
            )


def _end_all(cluster: Cluster) -> None:
    """Tell every task that the chief's process ends, and whether it ends well."""
    failed = getattr(sys, "last_value", None) is not None
    threads = [
        threading.Thread(target=_tell, args=(job, index, failed), daemon=True)
        for job in ("worker", "ps")
        for index in range(len(cluster.addresses(job)))
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _TELL_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _tell(job: str, index: int, failed: bool) -> None:
    try:
        with tf.device(f"/job:{job}/replica:0/task:{index}/device:CPU:0"):
            tensorflow_internals.ask(_END, _FAILED if failed else _ENDED_WELL)
    except tf.errors.OpError:
        # It is gone already, or will see that this process is.
        return
