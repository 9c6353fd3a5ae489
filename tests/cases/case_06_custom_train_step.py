"""A model with its own train_step: gradients and shown loss are global."""

import keras
import tensorflow as tf
from common import *
from keras import ops

virtual_cpus(2)


class M(keras.Model):
    def __init__(self):
        super().__init__()
        self.d = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")

    def call(self, x):
        return self.d(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as t:
            loss = ops.mean(ops.square(y - self(x, training=True)))
        self.optimizer.apply_gradients(
            zip(t.gradient(loss, self.trainable_variables), self.trainable_variables, strict=False)
        )
        return {"my_loss": loss}


class Good(M):  # uses Keras' own scaled loss
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as t:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply_gradients(
            zip(t.gradient(loss, self.trainable_variables), self.trainable_variables, strict=False)
        )
        return {"my_loss": loss}


def fn(cls):
    def model_fn():
        m = cls()
        m.compile(keras.optimizers.SGD(0.1), "mse")
        return m

    return model_fn


def ds():
    return ordered(col(1, 2, 3, 4), col(1, 1, 1, 1), 4)


assert abs(w_of(run(fn(M), ds(), 1, epochs=1)) - 0.5) < 1e-5
r2 = run(fn(M), ds(), 2, epochs=1)
ok = abs(w_of(r2) - 0.5) < 1e-5
assert ok or any("train_step" in s for s in r2.plan.warnings)
assert abs(w_of(run(fn(Good), ds(), 2, epochs=1)) - 0.5) < 1e-5
