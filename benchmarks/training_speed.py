"""Steps per second of autostrategy against a hand-written loop and stock Keras, in one run.

    python benchmarks/training_speed.py [--net dense|convolutional] [--replicas 1 2] [--rounds 5]

Each contender runs in a process of its own, in turn, round after round, on the
same machine; what counts is the ratio within a round. The hand-written loop is
what a careful user would write on Keras 3: a `tf.function` that runs 32 steps
of `strategy.run` with the model's own loss, optimizer and accuracy metric.
Peak memory is the process's resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

NETS = ("dense", "convolutional")
CONTENDERS = ("autostrategy", "loop", "keras")
BATCH = 128
STEPS = {"dense": 2048, "convolutional": 192}
STEPS_PER_LAUNCH = 32


def make_data(net: str):
    import numpy as np

    generator = np.random.default_rng(0)
    shape = (784,) if net == "dense" else (28, 28, 1)
    rows = BATCH * 64
    x = generator.normal(size=(rows, *shape)).astype("float32")
    return x, generator.integers(0, 10, rows)


def make_model(net: str):
    import keras
    from keras import layers

    if net == "dense":
        body = [keras.Input((784,)), layers.Dense(128, "relu"), layers.Dense(64, "relu")]
    else:
        body = [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
        ]
    model = keras.Sequential([*body, layers.Dense(10)])
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def run_autostrategy(net: str, replicas: int, epochs: int) -> float:
    import keras

    import autostrategy

    x, y = make_data(net)
    clock = EpochClock()
    callback = type("Clock", (keras.callbacks.Callback,), {"on_epoch_begin": clock})()
    autostrategy.fit(
        lambda: make_model(net),
        x,
        y,
        devices=replicas,
        batch_size=BATCH,
        batch_scaling="off",
        epochs=epochs + 1,
        verbose=0,
        callbacks=[callback],
    )
    return clock.seconds()


class EpochClock:
    """Time from the second epoch's begin to the end: tracing is left out."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, epoch, logs=None) -> None:
        self.times.append(time.perf_counter())

    def seconds(self) -> float:
        return time.perf_counter() - self.times[1]


def strategy_for(replicas: int):
    import tensorflow as tf

    if replicas == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * replicas
    )
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def run_loop(net: str, replicas: int, epochs: int) -> float:
    import tensorflow as tf

    strategy = strategy_for(replicas)
    x, y = make_data(net)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).repeat()
    dataset = dataset.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    with strategy.scope():
        model = make_model(net)
        loss_fn, optimizer = model.loss, model.optimizer
        import keras

        loss_metric = keras.metrics.Mean()
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        optimizer.build(model.trainable_variables)
        accuracy.update_state([0], [[1.0] + [0.0] * 9])
        accuracy.reset_state()
    iterator = iter(strategy.experimental_distribute_dataset(dataset) if replicas > 1 else dataset)

    def step(batch):
        inputs, labels = batch
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = loss_fn(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        loss_metric.update_state(loss * replicas)
        accuracy.update_state(labels, logits)

    @tf.function
    def launch(iterator):
        for _ in tf.range(STEPS_PER_LAUNCH):
            strategy.run(step, args=(next(iterator),))

    steps = epochs * (len(x) // BATCH)
    launch(iterator)
    begun = time.perf_counter()
    for _ in range(steps // STEPS_PER_LAUNCH):
        launch(iterator)
        loss_metric.result(), accuracy.result()
    loss_metric.result().numpy()
    return time.perf_counter() - begun


def run_keras(net: str, replicas: int, epochs: int) -> float:
    import keras

    x, y = make_data(net)
    clock = EpochClock()
    callback = type("Clock", (keras.callbacks.Callback,), {"on_epoch_begin": clock})()
    with strategy_for(replicas).scope():
        model = make_model(net)
    model.fit(x, y, batch_size=BATCH, epochs=epochs + 1, verbose=0, callbacks=[callback])
    return clock.seconds()


def child(contender: str, net: str, replicas: int) -> None:
    epochs = STEPS[net] // 64
    seconds = globals()[f"run_{contender}"](net, replicas, epochs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = {"milliseconds": seconds / (epochs * 64) * 1e3, "megabytes": peak}
    sys.stdout.write(f"RESULT {json.dumps(result)}\n")


def measure(contender: str, net: str, replicas: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", contender, "--net", net, "--replicas", str(replicas)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(lines[-1].removeprefix("RESULT "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", nargs="+", default=list(NETS), choices=NETS)
    parser.add_argument("--replicas", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.net[0], arguments.replicas[0])
        return
    print("| net | replicas | contender | ms a step | speed, autostrategy = 1 | peak MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for net in arguments.net:
        for replicas in arguments.replicas:
            rounds = [
                {each: measure(each, net, replicas) for each in CONTENDERS}
                for _ in range(arguments.rounds)
            ]
            for contender in CONTENDERS:
                own = [r[contender]["milliseconds"] for r in rounds]
                ratio = [
                    r["autostrategy"]["milliseconds"] / r[contender]["milliseconds"] for r in rounds
                ]
                memory = [r[contender]["megabytes"] for r in rounds]
                print(
                    f"| {net} | {replicas} | {contender} | {statistics.median(own):.2f} "
                    f"({min(own):.2f} to {max(own):.2f}) | {statistics.median(ratio):.2f} "
                    f"({min(ratio):.2f} to {max(ratio):.2f}) | {statistics.median(memory):.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
