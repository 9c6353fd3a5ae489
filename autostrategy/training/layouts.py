"""How a model's replicas are laid out over devices and processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from autostrategy.planner import Plan, StrategyKind
from autostrategy.training import share as shares
from autostrategy.training.static_shapes import StaticShapes

# (model, share, the step on the share's batch) -> logs
Runner = Callable[[keras.Model, shares.Share, Callable[[], Any]], dict[str, Any]]


@dataclass(kw_only=True)
class Layout:
    """How a model's replicas are laid out.

    `strategy` is None for one device that needs no strategy object. `replicas`
    counts over all workers, `local` those of this process, `first` is the
    number of its first one. `scarce` says that a batch may have fewer rows
    than there are replicas. `metric_ids` are ids of the Keras variables of
    metrics, `momenta` those of BatchNormalization with their momentum.
    `assigned` and `not_sums` fill while a step is traced; see `share.Share`.
    `own_state` are the Keras variables of which each replica keeps its own while a
    loop runs, where the strategy has one of each (central storage). `varying`
    fills with what workers exchange in shapes that differ between steps.
    `shapes` are the static ones of a TPU's rules. `runner` runs the step of a
    replica in its own way, compiled for one; `compiled` says whether one replica's are
    compiled, None for as the model says.
    """

    strategy: tf.distribute.Strategy | None
    replicas: int = 1
    local: int = 1
    first: int = 0
    scarce: bool = True
    metric_ids: frozenset[int] = frozenset()
    momenta: dict[int, float] = field(default_factory=dict)
    assigned: dict[int, Any] = field(default_factory=dict)
    not_sums: dict[int, Any] = field(default_factory=dict)
    varying: list[str] = field(default_factory=list)
    own_state: tuple[Any, ...] = ()
    central: bool = False
    shapes: StaticShapes | None = None
    runner: Runner | None = None
    compiled: bool | None = None

    @property
    def single(self) -> bool:
        """Whether one replica does all the work, so that nothing needs a share."""
        return self.replicas == 1

    @property
    def workers(self) -> int:
        """Processes that step together."""
        return self.replicas // self.local

    @property
    def has_peers(self) -> bool:
        """Whether other processes have replicas too."""
        return self.workers > 1

    @property
    def compilable_alone(self) -> bool:
        """Whether the step of one replica may be a function: these would exchange in each write."""
        exchanging = (
            tf.distribute.MirroredStrategy,
            tf.distribute.experimental.CentralStorageStrategy,
        )
        return not isinstance(self.strategy, exchanging)


def layout_of(strategy: tf.distribute.Strategy, plan: Plan) -> Layout:
    """The layout of the replicas of a plan."""
    if plan.kind is StrategyKind.PARAMETER_SERVER:
        return Layout(strategy=strategy)
    local = len(plan.devices)
    rank = (plan.cluster.rank or 0) if plan.cluster and plan.workers > 1 else 0
    return Layout(
        strategy=None if strategy is tf.distribute.get_strategy() else strategy,
        replicas=plan.workers * local,
        local=local,
        first=rank * local,
        central=plan.kind is StrategyKind.CENTRAL_STORAGE,
    )
