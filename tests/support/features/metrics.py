"""Metrics of training, and evaluate and predict with odd numbers of rows."""

from __future__ import annotations

from typing import Any

from jobs import Feature, Job
from parts import (
    BATCH,
    ONE_HOT,
    ROW_WEIGHTS,
    YES,
    X,
    Y,
    dataset,
    mean_square,
    net,
    rows,
    rows_seen,
    slow,
)


def classes(*make_metrics: Any) -> Any:
    """Metrics on three classes."""

    def make(k: Any) -> Job:
        def compiled() -> dict[str, Any]:
            return {
                "loss": "categorical_crossentropy",
                "metrics": [each(k) for each in make_metrics],
            }

        return Job(net(k, compiled, units=3, activation="softmax"), rows(X, ONE_HOT))

    return make


def binary(*make_metrics: Any) -> Any:
    """Metrics on yes and no."""

    def make(k: Any) -> Job:
        def compiled() -> dict[str, Any]:
            return {"loss": "binary_crossentropy", "metrics": [each(k) for each in make_metrics]}

        return Job(net(k, compiled, activation="sigmoid"), rows(X, YES))

    return make


def numbers(*make_metrics: Any, exact: tuple[str, ...] = ("iterations",)) -> Any:
    """Metrics on numbers."""

    def make(k: Any) -> Job:
        compiled = lambda: {"metrics": [each(k) for each in make_metrics]}  # noqa: E731
        return Job(net(k, compiled), rows(X, Y), exact=exact)

    return make


def weighted(k: Any) -> Job:
    def compiled() -> dict[str, Any]:
        return {
            "metrics": [k.metrics.MeanAbsoluteError(name="plain")],
            "weighted_metrics": [k.metrics.MeanAbsoluteError(name="weighted")],
        }

    return Job(net(k, compiled), rows(X, Y, ROW_WEIGHTS))


def asking(script: Any, *, exact: tuple[str, ...]) -> Any:
    """One epoch at rate 0, then `script` asks the model."""

    def make(k: Any) -> Job:
        def compiled() -> dict[str, Any]:
            optimizer = k.optimizers.SGD(0.0)
            return {"optimizer": optimizer, "metrics": ["mae", rows_seen(k)]}

        def run(session: Any) -> None:
            session.fit(rows(X, Y), epochs=1)
            script(session)

        return Job(net(k, compiled), rows(X, Y), script=run, exact=exact, falls=False)

    return make


def evaluate_arrays(session: Any) -> None:
    session.evaluate(lambda: (X, Y), batch_size=BATCH)


def evaluate_dataset(session: Any) -> None:
    session.evaluate(rows(X, Y))


def evaluate_weighted(session: Any) -> None:
    session.evaluate(rows(X, Y, ROW_WEIGHTS))


def evaluate_steps(session: Any) -> None:
    session.evaluate(lambda: (dataset(X, Y).repeat(),), steps=4)


def predict_arrays(session: Any) -> None:
    session.predict(lambda: (X,), batch_size=BATCH)


def predict_dataset(session: Any) -> None:
    session.predict(rows(X))


def predict_one_row(session: Any) -> None:
    session.predict(lambda: (X[:1],), batch_size=BATCH)


def evaluate_after_training(k: Any) -> Job:
    def run(session: Any) -> None:
        session.fit(rows(X, Y), epochs=3)
        session.evaluate(rows(X, Y))
        session.predict(rows(X))

    def compiled() -> dict[str, Any]:
        return {"optimizer": slow(k), "metrics": ["mae", rows_seen(k)]}

    exact = ("iterations", "evaluate/rows")
    return Job(net(k, compiled), rows(X, Y), script=run, exact=exact)


METRICS = (
    Feature("accuracy", classes(lambda k: "accuracy")),
    Feature("top-k accuracy", classes(lambda k: k.metrics.TopKCategoricalAccuracy(2))),
    Feature("AUC", binary(lambda k: k.metrics.AUC(num_thresholds=20))),
    Feature(
        "precision and recall",
        binary(lambda k: k.metrics.Precision(), lambda k: k.metrics.Recall()),
    ),
    Feature("F1", classes(lambda k: k.metrics.F1Score(average="macro"))),
    Feature("mean IoU", classes(lambda k: k.metrics.OneHotMeanIoU(3))),
    Feature("R2", numbers(lambda k: k.metrics.R2Score())),
    Feature("root mean squared error", numbers(lambda k: k.metrics.RootMeanSquaredError())),
    Feature("a function as metric", numbers(lambda k: mean_square)),
    Feature(
        "own metric that counts rows", numbers(rows_seen, exact=("iterations", "history/rows"))
    ),
    Feature("weighted metrics", weighted),
    Feature("evaluate, arrays", asking(evaluate_arrays, exact=("evaluate",))),
    Feature("evaluate, a dataset", asking(evaluate_dataset, exact=("evaluate",))),
    Feature("evaluate with sample weights", asking(evaluate_weighted, exact=("evaluate",))),
    Feature("evaluate steps of an endless dataset", asking(evaluate_steps, exact=("evaluate",))),
    Feature("predict in order, arrays", asking(predict_arrays, exact=("predict",))),
    Feature("predict in order, a dataset", asking(predict_dataset, exact=("predict",))),
    Feature("predict, one row", asking(predict_one_row, exact=("predict",))),
    Feature("evaluate and predict after training", evaluate_after_training),
)
