"""Models whose steps the user wrote."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from flavours import is_keras_3, scale_loss
from jobs import Feature, Job
from parts import BATCH, X, Y, random, rows, sgd, slow, two_layers


def with_train_step(k: Any) -> Any:
    class OwnTrainStep(two_layers(k)):
        def __init__(self) -> None:
            super().__init__()
            self.seen = k.metrics.Mean(name="seen")

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.seen.update_state(loss)
            return {"seen": self.seen.result()}

        @property
        def metrics(self) -> list[Any]:
            return [self.seen]

    return OwnTrainStep


def compiled(k: Any, cls: Any, *, optimizer: Any = sgd, **more: Any) -> Any:
    """A function that makes the model and compiles it."""

    def model_fn() -> Any:
        model = cls()
        model.compile(optimizer(k), "mse", **more)
        return model

    return model_fn


def train_step(k: Any) -> Job:
    return Job(compiled(k, with_train_step(k)), rows(X, Y))


def weighing_train_step(k: Any) -> Job:
    """As in Keras's guide: `compute_loss`, `scale_loss`, and the metrics by hand."""

    class Guide(two_layers(k)):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
                scaled = scale_loss(k, self.optimizer, loss)
            gradients = tape.gradient(scaled, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {metric.name: metric.result() for metric in self.metrics}

    # Batches of one size: see the GAN.
    data = rows(random(3 * BATCH, 3), random(3 * BATCH, 1, seed=8))
    return Job(compiled(k, Guide), data, lambda: {"epochs": 6})


def test_step(k: Any) -> Job:
    class OwnTestStep(with_train_step(k)):
        def test_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            self.seen.update_state(tf.reduce_mean(tf.abs(y - self(x, training=False))))
            return {"seen": self.seen.result()}

    model = compiled(k, OwnTestStep)
    return Job(model, rows(X, Y), lambda: {"validation_data": (X[:BATCH], Y[:BATCH])})


def predict_step(k: Any) -> Job:
    class OwnPredictStep(two_layers(k)):
        def predict_step(self, data: Any) -> Any:
            x = data[0] if isinstance(data, tuple) else data
            return {"outputs": self(x, training=False), "sums": tf.reduce_sum(x, axis=1)}

    def script(session: Any) -> None:
        session.fit(rows(X, Y), epochs=1)
        session.predict(rows(X))

    model = compiled(k, OwnPredictStep, optimizer=lambda k: k.optimizers.SGD(0.0))
    return Job(model, dict, script=script, exact=("predict",), falls=False)


def compute_loss(k: Any) -> Job:
    class OwnComputeLoss(two_layers(k)):
        if is_keras_3(k):

            def compute_loss(
                self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
            ) -> Any:
                return tf.reduce_mean(tf.abs(y - y_pred)) + 0.1 * tf.reduce_mean(y_pred**2)
        else:

            def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
                return tf.reduce_mean(tf.abs(y - y_pred)) + 0.1 * tf.reduce_mean(y_pred**2)

    return Job(compiled(k, OwnComputeLoss, optimizer=slow), rows(X, Y), falls=False)


def compute_metrics(k: Any) -> Job:
    class OwnComputeMetrics(two_layers(k)):
        def __init__(self) -> None:
            super().__init__()
            self.seen = k.metrics.Mean(name="seen")

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
            result = super().compute_metrics(x, y, y_pred, sample_weight)
            self.seen.update_state(tf.reduce_mean(y_pred))
            return {**result, "mine": self.seen.result()}

    return Job(compiled(k, OwnComputeMetrics, metrics=["mae"]), rows(X, Y))


OWN_STEPS = (
    Feature("own train_step", train_step),
    Feature("own train_step with compute_loss and metrics", weighing_train_step),
    Feature("own test_step", test_step),
    Feature("own predict_step", predict_step),
    Feature("own compute_loss", compute_loss),
    Feature("own compute_metrics", compute_metrics),
)
