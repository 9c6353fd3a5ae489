"""The private parts of Keras that we lean on are there, and are put back after use.

A failure in the tables below means that a new Keras changed one of them: read
its source before the table is changed.
"""

import inspect
import threading

import keras
import pytest
import tensorflow as tf
from conftest import OWNERS
from keras.src.backend.common import KerasVariable
from keras.src.backend.common import global_state as keras_global_state
from keras.src.backend.tensorflow.core import Variable as TensorFlowVariable
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.losses import loss as loss_module
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers import compile_utils
from keras.src.trainers.data_adapters import array_slicing, get_data_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.trainer import Trainer
from runs import dataset, dense, fit, random

from autostrategy.training import keras_semantics

LossScaleOptimizer = keras.optimizers.LossScaleOptimizer

SIGNATURES = [
    # owner, name, parameters
    (TensorFlowVariable, "_direct_assign", "self, value"),
    (loss_module.Loss, "__call__", "self, y_true, y_pred, sample_weight"),
    (loss_module, "scale_loss_for_distribution", "value"),
    (loss_module, "unscale_loss_for_distribution", "value"),
    (loss_module, "reduce_weighted_values", "values, sample_weight, mask, reduction, dtype"),
    (loss_module, "apply_mask", "sample_weight, mask, dtype, reduction"),
    (BaseOptimizer, "apply", "self, grads, trainable_variables"),
    (BaseOptimizer, "scale_loss", "self, loss"),
    (BaseOptimizer, "_var_key", "self, variable"),
    (LossScaleOptimizer, "apply", "self, grads, trainable_variables"),
    (LossScaleOptimizer, "_tf_apply", "self, grads, trainable_variables"),
    (LossScaleOptimizer, "_common_apply", "self, grads, trainable_variables"),
    (LossScaleOptimizer, "scale_loss", "self, loss"),
    (TFOptimizer, "_all_reduce_sum_gradients", "self, grads_and_vars"),
    (keras.metrics.Mean, "update_state", "self, values, sample_weight"),
    (keras.metrics.MeanMetricWrapper, "update_state", "self, y_true, y_pred, sample_weight"),
    (compile_utils.MetricsList, "update_state", "self, y_true, y_pred, sample_weight"),
    (keras.layers.BatchNormalization, "_moments", "self, inputs, mask"),
    (tf.__internal__.distribute.interim, "maybe_merge_call", "fn, strategy, args, kwargs"),
    (Trainer, "get_metrics_result", "self"),
    (Trainer, "_flatten_metrics_in_order", "self, logs"),
    (Trainer, "_compute_loss", "self, x, y, y_pred, sample_weight, training"),
    (array_slicing, "convert_to_sliceable", "arrays, target_backend"),
    (array_slicing, "train_validation_split", "arrays, validation_split"),
    (
        get_data_adapter,
        None,
        "x, y, sample_weight, batch_size, steps_per_epoch, shuffle, class_weight",
    ),
]


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    SIGNATURES,
    ids=[f"{owner.__name__}.{name}" for owner, name, _ in SIGNATURES],
)
def test_a_private_function_has_the_parameters_that_we_know(owner, name, parameters):
    function = getattr(owner, name) if name else owner

    assert ", ".join(inspect.signature(function).parameters) == parameters


def test_a_variable_keeps_its_tensorflow_variable_behind_a_property():
    assert isinstance(vars(KerasVariable)["value"], property)
    variable = keras.Variable(1.0)
    other = tf.Variable(2.0)

    variable._value = other

    assert variable.value is other
    assert float(variable) == 2.0


def test_a_model_has_the_private_parts_that_we_read():
    model = keras.Sequential([keras.Input((3,)), dense(1, 1)])
    model.compile("adam", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)

    assert next(iter(model._flatten_layers())) is model
    assert model._compile_metrics is not None
    assert model._compile_loss is not None
    assert model._distribute_strategy is None
    assert model._initial_epoch is None
    assert isinstance(model.optimizer._learning_rate, keras.Variable)
    assert model.optimizer._distribution_strategy is tf.distribute.get_strategy()
    assert len(model.optimizer._trainable_variables_indices) == 2
    assert {"train_function", "test_function", "predict_function"} <= vars(model).keys()


def test_layers_and_metrics_have_the_parts_that_tpu_rules_read():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 5, 3))

    assert layer._reduction_axes == [0, 1]
    assert layer.synchronized is False
    assert layer.supports_jit is True
    assert layer._losses == []
    assert {"moving_mean", "moving_variance"} <= {each.name for each in layer.variables}
    assert len(layer._non_trainable_variables) == 2
    assert compile_utils.MetricsList([]).metrics == []


def test_a_compile_is_another_compile_config():
    model = keras.Sequential([keras.Input((3,)), dense(1, 1)])
    model.compile("adam", "mse")
    before = model._compile_config

    model.compile("adam", "mse")

    assert model._compile_config is not before


def test_seeds_are_named_and_shaped_as_we_know():
    state = keras.random.SeedGenerator(3).state

    assert (state.name, tuple(state.shape)) == ("seed_generator_state", (2,))
    keras.random.uniform((1,))
    generator = keras_global_state.get_global_attribute("global_seed_generator")
    assert isinstance(generator, keras.random.SeedGenerator)


def test_data_adapters_have_the_private_parts_that_we_read():
    arrays = get_data_adapter(x=random(5, 2), y=None, batch_size=2)
    assert isinstance(arrays, ArrayDataAdapter)
    assert (arrays._num_samples, arrays.batch_size, arrays._inputs.shape) == (5, 2, (5, 2))

    batches = (random(2, 2) for _ in range(2))
    generator = get_data_adapter(x=((each, each) for each in batches))
    assert isinstance(generator, GeneratorDataAdapter)
    assert generator._first_batches[0][0].shape == (2, 2)

    class One(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return random(2, 2), random(2, 1)

    made = One()
    adapter = get_data_adapter(x=made)
    assert isinstance(adapter, PyDatasetAdapter)
    assert adapter.py_dataset is made


def keras_now():
    return [dict(vars(owner)) for owner in OWNERS]


def same(one, other):
    return all(
        first.keys() == second.keys()
        and all(first[name] is second[name] for name in first if not name.startswith("__dict"))
        for first, second in zip(one, other, strict=True)
    )


def test_everything_is_put_back_also_after_an_error_and_when_nested():
    before = keras_now()
    with keras_semantics.replica_semantics():
        replaced = keras_now()
        assert not same(replaced, before)
        with keras_semantics.replica_semantics():
            pass
        assert same(keras_now(), replaced)

    assert same(keras_now(), before)
    with pytest.raises(KeyError), keras_semantics.replica_semantics():
        raise KeyError
    assert same(keras_now(), before)


def test_two_threads_put_everything_back():
    """Also when the one that came first leaves first."""
    before = keras_now()
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def first():
        with keras_semantics.replica_semantics():
            first_in.set()
            second_in.wait(0.5)
        first_out.set()

    def second():
        first_in.wait(5)
        with keras_semantics.replica_semantics():
            second_in.set()
            first_out.wait(1)

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert same(keras_now(), before)


def test_outside_a_replica_the_stand_ins_do_what_keras_does():
    x, y = random(8, 3), random(8, 1)

    def trained():
        model = keras.Sequential([keras.Input((3,)), dense(1, 1)])
        model.compile("sgd", "mse", metrics=["mae"])
        history = model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        return history.history, model.get_weights()

    expected = trained()
    with keras_semantics.replica_semantics():
        ours = trained()

    assert ours[0] == expected[0]
    assert all((one == two).all() for one, two in zip(ours[1], expected[1], strict=True))


def test_keras_is_as_it_was_while_callbacks_run():
    before = keras_now()
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(same(keras_now(), before))

    def model_fn():
        model = keras.Sequential([keras.Input((3,)), dense(1, 1)])
        model.compile("sgd", "mse")
        return model

    fit(model_fn, dataset(random(8, 3), random(8, 1)), replicas=2, callbacks=[Look()])

    assert seen == [True, True]
