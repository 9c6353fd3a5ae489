"""The life of a model: made in various ways, trained again, saved, taken elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from flavours import load_model
from jobs import Feature, Job, only
from parts import X, Y, dense, net, rows, two_layers


def adam(k: Any) -> dict[str, Any]:
    return {"optimizer": k.optimizers.Adam(0.01), "loss": "mse", "metrics": ["mae"]}


def subclassed(k: Any) -> Job:
    def model_fn() -> Any:
        model = two_layers(k)()
        model.compile(**adam(k))
        return model

    return Job(model_fn, rows(X, Y))


def functional(k: Any) -> Job:
    def model_fn() -> Any:
        x = k.Input((3,))
        hidden = dense(k, 4, 1, "tanh")(x)
        outputs = {"p": dense(k, 1, 2, name="p")(hidden), "q": dense(k, 1, 3, name="q")(hidden)}
        model = k.Model(x, outputs)
        model.compile(k.optimizers.Adam(0.01), {"p": "mse", "q": "mse"})
        return model

    return Job(model_fn, rows(X, {"p": Y, "q": 2 * Y}))


def made_outside(k: Any) -> Job:
    model_fn = net(k, lambda: adam(k))

    def script(session: Any) -> None:
        session.model = model_fn()
        session.fit(rows(X, Y))

    return Job(model_fn, dict, script=script)


def trained_before(k: Any) -> Job:
    """One device first, without the strategy, then on with it."""
    model_fn = net(k, lambda: adam(k))

    def script(session: Any) -> None:
        session.model = model_fn()
        session.model.fit(*rows(X, Y)(), epochs=2, shuffle=False, verbose=0)
        session.fit(rows(X, Y), epochs=3)

    return Job(model_fn, dict, script=script)


def goes_on(k: Any) -> Job:
    def script(session: Any) -> None:
        session.fit(rows(X, Y), epochs=2)
        session.fit(rows(X, Y), epochs=3)

    return Job(net(k, lambda: adam(k)), dict, script=script)


def recompiled(k: Any) -> Job:
    def script(session: Any) -> None:
        session.fit(rows(X, Y), epochs=2)
        with session.scope():
            session.model.compile(k.optimizers.SGD(0.02), "mae", metrics=["mse"])
        session.fit(rows(X, Y), epochs=3)

    return Job(net(k, lambda: adam(k)), dict, script=script, falls=False)


def keras_goes_on(k: Any) -> Job:
    """Saved under the strategy, loaded without it, trained on one device."""

    def script(session: Any) -> None:
        session.fit(rows(X, Y), epochs=2)
        session.model = load_model(k, session.saved())
        session.model.fit(*rows(X, Y)(), epochs=2, shuffle=False, verbose=0)

    return Job(net(k, lambda: adam(k)), dict, script=script)


def loaded(k: Any) -> Job:
    """Saved by one device, loaded and trained under the strategy."""
    model_fn = net(k, lambda: adam(k))

    def script(session: Any) -> None:
        model = model_fn()
        model.fit(*rows(X, Y)(), epochs=2, shuffle=False, verbose=0)
        path = session.own_path("model.keras")
        model.save(path)
        session.model = None
        session.model_fn = lambda: load_model(k, path)
        session.fit(rows(X, Y), epochs=3)

    return Job(model_fn, dict, script=script)


def weights_files(k: Any) -> Job:
    """Weights alone, into a model of one device."""

    def script(session: Any) -> None:
        session.fit(rows(X, Y), epochs=2)
        path = session.own_path("of.weights.h5")
        session.model.save_weights(path)
        other = net(k)()
        other.load_weights(path)
        session.tell("other", other.predict(X, verbose=0))
        expected = session.model(X)
        np.testing.assert_allclose(np.asarray(expected), session.outcome["other"], 1e-5, 1e-6)

    return Job(net(k, lambda: adam(k)), dict, script=script)


def ordinary(k: Any) -> Job:
    """What comes back answers `predict` and `evaluate` of Keras itself."""

    def script(session: Any) -> None:
        session.fit(rows(X, Y), epochs=2)
        session.tell("own evaluate", session.model.evaluate(X, Y, verbose=0))
        session.tell("own predict", session.model.predict(X, verbose=0))

    return Job(net(k, lambda: adam(k)), dict, script=script, rtol=1e-4)


def exported(k: Any) -> Job:
    """A SavedModel of it gives the same outputs."""

    def script(session: Any) -> None:
        import tensorflow as tf

        session.fit(rows(X, Y), epochs=1)
        path = session.own_path("export")
        session.model.export(path)
        served = tf.saved_model.load(path)
        session.tell("served", served.serve(tf.constant(X)))

    model = net(k, lambda: {"optimizer": k.optimizers.SGD(0.0)})
    expected = only("served")
    return Job(model, dict, script=script, expected=expected, exact=("served",), falls=False)


LIFE = (
    Feature("functional model, several outputs", functional),
    Feature("subclassed model, built by its data", subclassed),
    Feature("model made outside the scope", made_outside),
    Feature("model trained on one device before", trained_before),
    Feature("second fit goes on", goes_on),
    Feature("compiled anew between fits", recompiled),
    Feature("saved, loaded and trained on one device", keras_goes_on),
    Feature("saved by one device, loaded and trained", loaded),
    Feature("saved weights in another model", weights_files),
    Feature("the model afterwards, asked by Keras", ordinary),
    Feature("export", exported),
)
