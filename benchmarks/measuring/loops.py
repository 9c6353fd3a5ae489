"""The hand-written loops: what a careful user of Keras 3 writes for each strategy.

All run 32 steps in one call of TensorFlow, and read loss and accuracy once an
epoch. One device, mirrored and multi-worker count them in Keras's metrics.
Under central storage and parameter servers Keras's metrics do not count right
inside `strategy.run`, so steps return what they counted, and it is summed outside.
"""

from __future__ import annotations

import contextlib
from typing import Any

from measuring import nets, strategies
from measuring.job import Clock, Job

STEPS_PER_LAUNCH = 32


def run(job: Job) -> dict[str, Any]:
    """Train with the loop of the job's strategy, and return what its clock measured."""
    strategy = strategies.make(job.strategy)
    if job.strategy == strategies.CENTRAL:
        return _central(job, strategy)
    if job.strategy == strategies.PARAMETER_SERVER:
        return _parameter_server(job, strategy)
    return _synchronous(job, strategy)


def _synchronous(job: Job, strategy: Any) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    x, y = nets.arrays(job.net, job.rows)
    dataset = strategies.dataset(x, y, job.batch)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = nets.model(keras, job.net)
        loss_metric = keras.metrics.Mean()
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        model.optimizer.build(model.trainable_variables)
        accuracy.update_state([0], [[1.0] + [0.0] * 9])
        accuracy.reset_state()
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    batches = iter(
        dataset if strategy is None else strategy.experimental_distribute_dataset(dataset)
    )

    def step(inputs: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = model.loss(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        # Keras divides the loss by the number of replicas.
        loss_metric.update_state(loss * replicas)
        accuracy.update_state(labels, logits)

    @tf.function
    def launch(batches: Any) -> None:
        for _ in tf.range(STEPS_PER_LAUNCH):
            if strategy is None:
                step(*next(batches))
            else:
                strategy.run(step, args=next(batches))

    clock = Clock(job)
    for epoch in range(job.epochs + 1):
        clock.epoch_begins(epoch)
        for metric in (loss_metric, accuracy):
            metric.reset_state()
        for _ in range(job.epoch_steps // STEPS_PER_LAUNCH):
            launch(batches)
        loss = float(loss_metric.result())
        float(accuracy.result())
        clock.epoch_ends()
    return clock.result(loss)


def _central(job: Job, strategy: Any) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    x, y = nets.arrays(job.net, job.rows)
    with strategy.scope():
        model = nets.model(keras, job.net)
        model.optimizer.build(model.trainable_variables)
    batches = iter(strategy.experimental_distribute_dataset(strategies.dataset(x, y, job.batch)))
    step = _counting_step(model, job.batch)

    @tf.function
    def launch(batches: Any) -> Any:
        loss = correct = 0.0
        for _ in tf.range(STEPS_PER_LAUNCH):
            losses, hits = strategy.run(step, args=next(batches))
            loss += strategy.reduce("SUM", losses, axis=None)
            correct += strategy.reduce("SUM", hits, axis=None)
        return loss, correct

    clock = Clock(job)
    for epoch in range(job.epochs + 1):
        clock.epoch_begins(epoch)
        counts = [launch(batches) for _ in range(job.epoch_steps // STEPS_PER_LAUNCH)]
        loss = sum(float(each) for each, _ in counts) / job.epoch_steps
        sum(float(each) for _, each in counts)
        clock.epoch_ends()
    return clock.result(loss)


def _parameter_server(job: Job, strategy: Any) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    assert job.records is not None
    dataset_of = nets.read_records(job.records, job.net, job.batch)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = nets.model(keras, job.net)
        model.optimizer.build(model.trainable_variables)

    @tf.function
    def dataset_of_worker() -> Any:
        return strategy.distribute_datasets_from_function(dataset_of)

    batches = iter(coordinator.create_per_worker_dataset(dataset_of_worker))
    step = _counting_step(model, job.batch)

    @tf.function
    def launch(batches: Any) -> Any:
        loss = correct = 0.0
        for _ in tf.range(STEPS_PER_LAUNCH):
            own_loss, hits = strategy.run(step, args=next(batches))
            loss += own_loss
            correct += hits
        return loss, correct

    clock = Clock(job)
    for epoch in range(job.epochs + 1):
        clock.epoch_begins(epoch)
        remote = [
            coordinator.schedule(launch, args=(batches,))
            for _ in range(job.epoch_steps // STEPS_PER_LAUNCH)
        ]
        coordinator.join()
        counts = [each.fetch() for each in remote]
        loss = sum(float(each) for each, _ in counts) / job.epoch_steps
        sum(float(each) for _, each in counts)
        clock.epoch_ends()
    return clock.result(loss)


def _counting_step(model: Any, batch: int) -> Any:
    """A step that returns its part of the batch's mean loss, and how many rows it got right."""
    import tensorflow as tf

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / batch
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        hits = tf.equal(tf.argmax(logits, axis=1), labels)
        return loss, tf.reduce_sum(tf.cast(hits, tf.float32))

    return step
