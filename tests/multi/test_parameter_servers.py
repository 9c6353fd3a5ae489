"""Parameter servers as local processes: exact counts, one device's numbers with one worker."""

from pathlib import Path

import numpy as np
import pytest
import workers
from workers import SERVE, chief_of

HERE = Path(__file__).parent

NET = """
import keras
from keras import layers
rows = np.random.default_rng(0).normal(size=(203, 8)).astype("float32")
marks = (rows.sum(1, keepdims=True) > 0).astype("float32")

def model_fn(optimizer=None):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([
        keras.Input((8,)),
        layers.Dense(16, activation="relu"),
        layers.BatchNormalization(),
        layers.Dropout(0.1),
        layers.Dense(1, activation="sigmoid"),
    ])
    model.compile(optimizer or keras.optimizers.Adam(0.01, clipnorm=1.0), "binary_crossentropy",
                  metrics=["accuracy", Rows()])
    return model

class Rows(keras.metrics.Metric):
    def __init__(self, name="rows"):
        super().__init__(name=name)
        self.seen = self.add_variable((), "zeros", name="seen")
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))
    def result(self):
        return self.seen + 0
"""


@pytest.mark.slow
def test_500_steps_are_500_updates_and_every_task_ends(tmp_path):
    ended = workers.run(
        NET
        + """
        import autostrategy
        history = autostrategy.fit(model_fn, rows, marks, batch_size=5, epochs=12, verbose=0)
        last = autostrategy.fit(history.model, rows, marks, batch_size=25, epochs=1,
                                steps_per_epoch=8, verbose=0)
        tell({
            "iterations": int(history.model.optimizer.iterations.numpy()),
            "rows": history.history["rows"],
            "last": last.history["rows"],
            "loss": history.history["loss"],
            "steps": history.report.steps + last.report.steps,
        })
        """.replace("\n        ", "\n"),
        {"chief": 1, "worker": 3, "ps": 2},
        tmp_path=tmp_path,
    )

    chief = chief_of(ended)
    told = chief.value
    assert told["steps"] == told["iterations"] == 500  # 12 epochs of 41 and one of 8
    assert told["rows"] == [203.0] * 12
    assert told["last"] == [200.0]
    assert told["loss"][-1] < told["loss"][0] / 2
    assert max(each.at for each in ended) - chief.at < 15


# In one cluster, since its start takes longer than the cases.
CASES = (
    "reductions with sample weights",
    "masks and a scalar loss",
    "add_loss",
    "global_clipnorm",
    "accumulation",
    "accumulation and ema",
    "loss scale",
    "binary metrics",
    "own train_step with more logs",
    "own test_step",
    "gan",
    "synchronised batch normalisation",
    "spectral normalisation",
    "a layer that counts its steps",
    "embedding",
    "gru",
)


def test_one_worker_trains_as_one_device_does(tmp_path):
    ended = workers.run(
        SERVE
        + f"""
sys.path.insert(0, {str(HERE.parent / "training")!r})
import keras
from keras import layers
import same_numbers
from runs import assert_equal, trained, train_stock, Trained, EPOCHS

wrong = {{}}
for name in {CASES!r}:
    case = same_numbers.CASES[name]
    stock = train_stock(case.model, case.data, **case.arguments)
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    history = autostrategy.fit(case.model, *case.data(), batch_scaling="off", verbose=0,
                               **{{"epochs": EPOCHS, **case.arguments}})
    try:
        assert_equal(trained(history.model, history), stock, rtol=case.rtol, atol=case.atol,
                     slots=case.slots)
    except AssertionError as error:
        wrong[name] = str(error)[-300:]
tell(wrong)
""",
        {"chief": 1, "worker": 1, "ps": 2},
        tmp_path=tmp_path,
    )

    assert chief_of(ended).value == {}


@pytest.mark.slow
def test_data_of_every_kind_is_seen_once_and_large_tables_are_split(tmp_path):
    ended = workers.run(
        NET
        + """
import autostrategy
import tensorflow as tf  # before the cluster: what was made is carried over

early = tf.data.Dataset.from_tensor_slices((rows, marks)).shuffle(203).batch(10)

def sharded(context):
    data = tf.data.Dataset.from_tensor_slices((rows, marks))
    return data.shard(context.num_input_pipelines, context.input_pipeline_id).batch(10)

def lines():
    for start in range(0, 203, 10):
        yield rows[start:start + 10], marks[start:start + 10]

class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 21
    def __getitem__(self, index):
        return rows[index * 10:index * 10 + 10], marks[index * 10:index * 10 + 10]

def seen(*data, **arguments):
    history = autostrategy.fit(model_fn, *data, verbose=0, **{"epochs": 2, **arguments})
    return [int(history.model.optimizer.iterations.numpy()), *history.history["rows"]]

told = {"early": seen(early)}
plain = tf.data.Dataset.from_tensor_slices((rows, marks)).batch(10)
called = plain.map(lambda x, y: (tf.ensure_shape(
    tf.numpy_function(lambda each: each, [x], tf.float32), [None, 8]), y))
told |= {
    "unknown": seen(plain.filter(lambda x, y: True)),
    "repeated": seen(plain.repeat(), steps_per_epoch=7),
    "sharded": seen(sharded),
    "generator": seen(lines(), epochs=1),
    "PyDataset": seen(Batches()),
    "calls python": seen(called),
    "arrays": seen(rows, marks, batch_size=10),
    "few batches": seen(plain.take(1)),
}

plan = autostrategy.plan(autostrategy.probe())
again = autostrategy.Trainer(model_fn, plan, batch_scaling="off")
told["other batches"] = [
    again.fit(rows, marks, batch_size=size, verbose=0).history["rows"][0] for size in (29, 7, 50)
]

ids = np.random.default_rng(0).integers(0, 50_000, (400, 3))
values = ids[:, :1].astype("float32") / 50_000

def table_fn():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([
        keras.Input((3,), dtype="int32"), layers.Embedding(50_000, 8), layers.Flatten(),
        layers.Dense(1),
    ])
    model.compile(keras.optimizers.Adam(0.01, clipnorm=1.0), "mse")
    return model

history = autostrategy.fit(table_fn, ids, values, batch_size=40, epochs=3, verbose=0)
model = history.model
table = model.layers[0]._embeddings.value
model.save("table.keras")
loaded = keras.models.load_model("table.keras")
trainer = autostrategy.Trainer(model, history.plan)
told |= {
    "parts": sorted(part.device.rpartition("/replica")[2] for part in table.parts),
    "slots": sum(type(each.value) is type(table) for each in model.optimizer.variables),
    "saved": all(np.array_equal(a, b) for a, b in zip(model.get_weights(), loaded.get_weights())),
    "iterations": int(loaded.optimizer.iterations.numpy()),
    "loss": history.history["loss"],
    "evaluated": abs(trainer.evaluate(ids, values, batch_size=33, verbose=0)
                     - loaded.evaluate(ids, values, verbose=0)),
    "predicted": float(np.abs(trainer.predict(ids, batch_size=33, verbose=0)
                              - loaded.predict(ids, verbose=0)).max()),
}
tell(told)
""",
        {"chief": 1, "worker": 2, "ps": 2},
        tmp_path=tmp_path,
    )

    told = chief_of(ended).value
    whole = [42, 203.0, 203.0]
    for kind in ("early", "unknown", "PyDataset", "calls python", "arrays"):
        assert told[kind] == whole, kind
    assert told["repeated"] == [14, 70.0, 70.0]
    assert told["sharded"] == [44, 203.0, 203.0]  # 102 and 101 rows, 11 batches each
    assert told["generator"] == [21, 203.0]
    assert told["few batches"] == [2, 10.0, 10.0]
    assert told["other batches"] == [203.0] * 3
    assert told["parts"] == [":0/task:0/device:CPU:0", ":0/task:1/device:CPU:0"]
    assert told["slots"] == 2
    assert told["saved"]
    assert told["iterations"] == 30
    assert told["loss"][-1] < told["loss"][0]
    assert told["evaluated"] < 1e-6
    assert told["predicted"] < 1e-6


@pytest.mark.slow
def test_a_failing_chief_takes_its_tasks_along_and_an_evaluator_evaluates(tmp_path):
    ended = workers.run(
        NET
        + """
import os
import autostrategy

os.makedirs("files", exist_ok=True)
saving = keras.callbacks.ModelCheckpoint("files/{epoch:02d}.keras")
history = autostrategy.fit(model_fn, rows, marks, batch_size=29, epochs=2, verbose=0,
                           validation_data=(rows, marks), callbacks=[saving])
print("CHIEF", *(f"{value:.6g}" for value in history.history["val_loss"]))
autostrategy.fit(model_fn, rows[:0], marks[:0])
""",
        {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1},
        tmp_path=tmp_path,
    )

    tasks = {each.task[0]: each for each in ended}
    assert {name: each.status for name, each in tasks.items()} == {
        "chief": 1,
        "worker": 1,
        "ps": 1,
        "evaluator": 0,
    }
    assert "x must have at least 1 row" in tasks["chief"].output
    for name in ("worker", "ps"):
        assert "the chief at 127.0.0.1" in tasks[name].output
        assert "ended with an error" in tasks[name].output
    chief = next(x for x in tasks["chief"].output.splitlines() if x.startswith("CHIEF"))
    lines = [x for x in tasks["evaluator"].output.splitlines() if x.startswith("evaluator ")]
    assert [line.split()[1] for line in lines] == ["01.keras", "02.keras"]
    values = [line.split("loss ")[1].split()[0] for line in lines]
    np.testing.assert_allclose([*map(float, values)], [*map(float, chief.split()[1:])], rtol=1e-4)


def test_tasks_that_never_started_are_named(tmp_path):
    body = NET + "import autostrategy\nautostrategy.fit(model_fn, rows, marks)\n"
    jobs = {"chief": 1, "worker": 1, "ps": 1}
    env = {"AUTOSTRATEGY_START_TIMEOUT": "2"}

    (alone,) = workers.run(body, jobs, tmp_path=tmp_path, env=env, only=[0])
    (server,) = workers.run(body, jobs, tmp_path=tmp_path, env=env, only=[2])

    assert alone.status == 1
    assert "All 2 workers and servers of the cluster must start within 2 s" in alone.output
    assert server.status == 1
    assert "The chief must start within 2 s. Received: no answer from 127.0.0.1" in server.output


@pytest.mark.slow
def test_a_chief_that_is_killed_ends_its_tasks(tmp_path):
    ended = workers.run(
        NET
        + """
import os, signal
import autostrategy

class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        os.kill(os.getpid(), signal.SIGKILL)

autostrategy.fit(model_fn, rows, marks, epochs=2, verbose=0, callbacks=[Kill()])
""",
        {"chief": 1, "worker": 1, "ps": 1},
        tmp_path=tmp_path,
    )

    chief, *others = ended
    assert chief.status == -9
    for each in others:
        assert each.status == 1
        assert "The chief must stay alive while its tasks serve it" in each.output


@pytest.mark.slow
def test_rounds_of_accumulation_go_on_over_epochs_and_functions_are_checked(tmp_path):
    ended = workers.run(
        NET
        + """
import autostrategy
def accumulating():
    return model_fn(keras.optimizers.SGD(0.01, gradient_accumulation_steps=2))
def fails(*data, **arguments):
    try:
        autostrategy.fit(accumulating, *data, verbose=0, **arguments)
    except autostrategy.TrainingError as error:
        return str(error)
def sharded(context):
    import tensorflow as tf
    return tf.data.Dataset.from_tensor_slices((rows, marks)).batch(10)
def python(context):
    import tensorflow as tf
    spec = (tf.TensorSpec([None, 8]), tf.TensorSpec([None, 1]))
    return tf.data.Dataset.from_generator(lambda: iter([(rows, marks)]), output_signature=spec)
odd = autostrategy.fit(accumulating, rows, marks, batch_size=10, epochs=3, verbose=0)
optimizer = odd.model.optimizer
tell([fails(sharded), fails(lambda context: rows), fails(python),
      int(optimizer._iterations.numpy()), int(optimizer.iterations.numpy()),
      odd.history["rows"], any(each.numpy().any() for each in optimizer._accumulated_gradients)])
""",
        {"chief": 1, "worker": 2, "ps": 1},
        tmp_path=tmp_path,
    )

    sharded, no_dataset, python, steps, updates, rows, left = chief_of(ended).value
    assert "gradient accumulation needs data that the chief reads" in sharded
    assert "must return a tf.data.Dataset of batches. Received: numpy.ndarray" in no_dataset
    assert "must not call Python functions" in python
    assert (steps, updates) == (63, 31)  # 21 steps in each epoch
    assert rows == [203.0] * 3
    assert left  # the gradients of the 63rd step wait for the next


@pytest.mark.slow
def test_two_workers_lose_nothing_of_slots_and_constraints_and_draw_new_orders(tmp_path):
    ended = workers.run(
        NET
        + """
import autostrategy
import tensorflow as tf
ids = np.random.default_rng(0).integers(0, 50_000, (203, 3))
values = np.random.default_rng(1).normal(size=(203, 1)).astype("float32")
told = {}

def table():
    keras.utils.set_random_seed(1)
    i = keras.Input((3,), dtype="int32")
    h = layers.GlobalAveragePooling1D()(layers.Embedding(50_000, 8)(i))
    model = keras.Model(i, layers.Dense(1)(h))
    model.compile(keras.optimizers.Adamax(0.01), "mse")
    return model

told["adamax"] = autostrategy.fit(
    table, ids, values, batch_size=20, epochs=3, verbose=0).history["loss"]

class Inert(keras.constraints.Constraint):
    def __call__(self, w):
        return w * 1.0

def constrained():
    model = keras.Sequential([keras.Input((1,)), layers.Dense(
        1, use_bias=False, kernel_initializer="zeros", kernel_constraint=Inert())])
    model.compile(keras.optimizers.SGD(1.0), lambda y_true, y_pred: -y_pred)
    return model

ones = np.ones((400, 1), "float32")
told["constraint"] = float(autostrategy.fit(
    constrained, ones, ones, batch_size=1, verbose=0, steps_per_loop=4
).model.get_weights()[0][0, 0])

class Neighbours(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="neighbours")
        self.total = self.add_variable((), "zeros")
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(y_true[0, 0] * y_true[1, 0])
    def result(self):
        return self.total + 0

def linear():
    model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Neighbours()])
    return model

line = np.linspace(0, 1, 40, dtype="float32")[:, None]
plain = tf.data.Dataset.from_tensor_slices((line, line))
for name, arguments in {"unseeded": {}, "seeded": {"seed": 3}}.items():
    told[name] = autostrategy.fit(
        linear, plain.shuffle(40, **arguments).batch(4), epochs=3, verbose=0
    ).history["neighbours"]
told["file"] = autostrategy.fit(linear, plain.batch(4).cache("rows"), verbose=0).report.steps

def text(*data):
    try:
        return autostrategy.fit(linear, *data, verbose=0).report.steps
    except autostrategy.TrainingError as error:
        return str(error)

told["promise"] = text(plain.batch(4).apply(tf.data.experimental.assert_cardinality(50)))
told["forms"] = text(
    lambda context: plain.batch(4, drop_remainder=context.input_pipeline_id == 0))
told["empty shard"] = text(lambda context: plain.batch(4).take(5 * context.input_pipeline_id))
tell(told)
""",
        {"chief": 1, "worker": 2, "ps": 2},
        tmp_path=tmp_path,
    )

    told = chief_of(ended).value
    assert max(told["adamax"]) < 1
    assert told["constraint"] == 400
    for name in ("unseeded", "seeded"):
        assert len({round(each, 4) for each in told[name]}) == 3, name
    assert told["file"] == 10
    assert "must hold as many batches as it says" in told["promise"]
    assert "All workers must read elements of one form" in told["forms"]
    assert told["empty shard"] == 5


@pytest.mark.slow
def test_servers_and_workers_that_are_lost_are_named(tmp_path):
    body = (
        NET
        + """
import os, signal, threading
import autostrategy
from autostrategy.training import server_epochs
server_epochs._ALONE_SECONDS = 3.0
task = json.loads(os.environ["TF_CONFIG"])["task"]
if task["type"] == os.environ["LOST"]:
    threading.Timer(12, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
autostrategy.fit(model_fn, rows, marks, batch_size=20, epochs=100_000, verbose=0)
"""
    )
    jobs = {"chief": 1, "worker": 1, "ps": 1}

    for lost, text in {
        "ps": "Every server must stay alive while it holds variables. Received: no answer",
        "worker": "At least one worker must stay alive. Received: no answer from 127.0.0.1",
    }.items():
        ended = workers.run(body, jobs, tmp_path=tmp_path, timeout=90, env={"LOST": lost})
        chief = next(each for each in ended if each.task[0] == "chief")
        assert chief.status == 1
        assert text in chief.output


@pytest.mark.slow
def test_run_serves_before_the_script_and_tells_of_a_script_that_fails(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('SCRIPT')\nimport sys\nsys.exit('accuracy too low')\n")
    command = f"""
import subprocess, sys
done = subprocess.run([sys.executable, "-m", "autostrategy", "run", {str(script)!r}],
                      capture_output=True, text=True)
print(done.stdout, done.stderr)
sys.exit(done.returncode)
"""

    ended = workers.run(command, {"chief": 1, "worker": 1, "ps": 1}, tmp_path=tmp_path)

    assert {each.status for each in ended} == {1}
    assert ["SCRIPT" in each.output for each in ended] == [True, False, False]
    assert all("ended with an error" in each.output for each in ended[1:])
