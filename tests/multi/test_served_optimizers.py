"""Optimizers on parameter servers: one worker's numbers are one device's, slots are at home."""

import pytest
import workers
from workers import SERVE, chief_of

BODY = """
import keras
import tensorflow as tf
from keras import layers

ids = np.random.default_rng(0).integers(0, 70_000, (60, 3))
ids[:, 1] = ids[:, 0]  # a row looked up twice
dense = np.random.default_rng(1).normal(size=(60, 4)).astype("float32")
values = np.random.default_rng(2).normal(size=(60, 1)).astype("float32")

class Halting(keras.optimizers.Optimizer):
    # Writes its slot in a branch, as none of Keras's own does.
    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.slots = [self.add_variable_from_reference(each, "slot") for each in variables]

    def update_step(self, gradient, variable, learning_rate):
        slot = self.slots[self._get_variable_index(variable)]
        gradient = tf.convert_to_tensor(gradient)

        def add():
            slot.assign(slot.value * 0.5 + gradient)
            return tf.constant(0)

        tf.cond(tf.equal(self.iterations.value % 2, 0), add, lambda: tf.constant(0))
        self.assign_sub(variable, 0.1 * slot.value)

    def get_config(self):
        return super().get_config()

MORE = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adam": {"amsgrad": True, "weight_decay": 0.01},
    "Adafactor": {"weight_decay": 0.01},
}
made = {
    name: lambda kind=kind, name=name: kind(learning_rate=0.01, **MORE.get(name, {}))
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type)
    and issubclass(kind, keras.optimizers.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
}
made["Adagrad, accumulating"] = lambda: keras.optimizers.Adagrad(
    0.01, gradient_accumulation_steps=2)
made["in a branch"] = lambda: Halting(learning_rate=0.1)
if hasattr(keras.optimizers, "MultiOptimizer"):
    def several():
        first, rest = keras.optimizers.Adagrad(0.01), keras.optimizers.Adam(0.01)
        return keras.optimizers.MultiOptimizer(lambda v: first if "table" in v.path else rest)
    made["MultiOptimizer"] = several

def net(optimizer):
    keras.utils.set_random_seed(0)
    i, j = keras.Input((3,), dtype="int32"), keras.Input((4,))
    table = layers.Embedding(70_000, 8, name="table")
    h = layers.concatenate([layers.GlobalAveragePooling1D()(table(i)), j])
    h = layers.Dense(6, "relu", name="hidden")(h)
    model = keras.Model([i, j], layers.Dense(1, name="out")(h))
    model.compile(optimizer(), "mse")
    return model

def homes(variable):
    return [part.device for part in getattr(variable._value, "parts", (variable._value,))]

DATA = dict(x=[ids, dense], y=values, batch_size=13, epochs=2, verbose=0, shuffle=False)
wrong, apart, split = {}, {}, []
for name, optimizer in made.items():
    alone = net(optimizer)
    # Keras 3.15 forgets the weights that ScheduleFreeAdamW starts from when `fit` builds it.
    alone.optimizer.build(alone.trainable_variables)
    alone.fit(**DATA)
    model = autostrategy.fit(lambda: net(optimizer), batch_scaling="off", **DATA).model
    for one, other in zip(
        [*alone.variables, *alone.optimizer.variables],
        [*model.variables, *model.optimizer.variables],
        strict=True,
    ):
        one, other, path = np.asarray(one), np.asarray(other), one.path
        if not np.allclose(one, other, rtol=1e-5, atol=1e-6):
            wrong[f"{name}: {path}"] = float(np.abs(one - other).max())
    for variable in model.trainable_variables:
        if len(homes(variable)) == 2:
            split.append(name)
        for slot in model.optimizer.variables:
            mine = variable.path.replace("/", "_") in slot.path
            if mine and slot.shape == variable.shape and homes(slot) != homes(variable):
                apart[f"{name}: {slot.path}"] = homes(slot)
tell({"wrong": wrong, "apart": apart, "split": split, "made": sorted(made)})
"""


@pytest.mark.slow
def test_every_optimizer_updates_on_the_servers_as_on_one_device(tmp_path):
    ended = workers.run(
        SERVE + BODY, {"chief": 1, "worker": 1, "ps": 2}, tmp_path=tmp_path, timeout=400
    )

    told = chief_of(ended).value
    assert len(told["made"]) >= 14
    assert told["wrong"] == {}
    assert told["apart"] == {}
    assert {"SGD", "Adam", "Adagrad"} <= set(told["split"])
