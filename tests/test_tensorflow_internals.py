"""The private parts of TensorFlow that we lean on are there, and behave as we think."""

import inspect
import logging
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.python.distribute import values
from tensorflow.python.eager import context as eager_context

from autostrategy import tensorflow_internals


def python(code):
    """The last line that `code` prints in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_the_context_has_the_parts_that_a_late_start_replaces(four_cpus):
    context = eager_context.context()

    assert "_context_handle" in vars(context)
    parameters = list(inspect.signature(context.enable_collective_ops).parameters)
    assert parameters == ["server_def"]
    assert "configure_collective_ops" in dir(context)


@pytest.mark.parametrize("made", ["tf.constant(1)", "tf.data.Dataset.range(3)"])
def test_tensorflow_is_in_use_once_anything_is_made(made):
    lines = [
        "import tensorflow as tf",
        "from autostrategy import tensorflow_internals as internals",
        "told = [internals.is_initialized()]",
        "import keras",
        "tf.config.list_physical_devices()",
        "told.append(internals.is_initialized())",
        made,
        "told.append(internals.is_initialized())",
        "print(told)",
    ]

    assert python("\n".join(lines)) == "[False, False, True]"


def test_a_late_start_puts_everything_back_also_after_an_error(four_cpus):
    context = eager_context.context()
    handle = context._context_handle
    filters = list(logging.getLogger("absl").filters)

    def fail():
        with tensorflow_internals.late_collectives():
            assert context._context_handle is None
            assert "enable_collective_ops" in vars(context)
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert context._context_handle is handle
    assert "enable_collective_ops" not in vars(context)
    assert logging.getLogger("absl").filters == filters
    assert float(tf.constant(2.0) * 3) == 6.0


def test_only_news_of_a_late_start_is_kept_off_the_log():
    def record(text):
        return logging.LogRecord("absl", logging.WARNING, "", 0, text, (), None)

    assert not tensorflow_internals._is_news(
        record("Enabling collective ops after program startup")
    )
    assert tensorflow_internals._is_news(record("Something is wrong"))


def test_distributed_variables_become_numbers(four_cpus):
    assert hasattr(values, "DistributedVariable")
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        variable = tf.Variable(2.5)

    tensorflow_internals.let_distributed_variables_be_numbers()

    assert float(variable) == 2.5
    assert int(variable) == 2
