"""Global batch, per-replica batch, learning rate and warm-up. Pure arithmetic.

The user writes a batch and a learning rate for one device. On R replicas the
rules keep the batch of a replica, so the global batch grows, and move the
learning rate with it:

    rule      global batch    learning rate     for
    off       batch           rate              exactly the user's numbers
    linear    batch x R       rate x R          SGD and its momentum forms [1]
    sqrt      batch x R       rate x sqrt(R)    Adam-like optimizers [2, 3, 4]

[1] Goyal et al. 2017, Accurate, Large Minibatch SGD, arXiv:1706.02677:
    linear rule, and five epochs of warm-up from the unscaled rate.
[2] Malladi et al. 2022, On the SDEs and Scaling Rules for Adaptive Gradient
    Algorithms, arXiv:2205.10782: square root for RMSprop and Adam.
[3] You et al. 2020, Large Batch Optimization for Deep Learning,
    arXiv:1904.00962: square root for LAMB.
[4] Krizhevsky 2014, One weird trick, arXiv:1404.5997: square root keeps the
    variance of an update constant, whatever the optimizer.

The rate is scaled here and nowhere else, from `base_learning_rate`, so that
neither a second `fit` nor a resumed one scales it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autostrategy.errors import PlanError

BATCH_SCALINGS = ("auto", "linear", "sqrt", "off")

# The length of an update is proportional to the gradient, so the linear rule
# holds. Everything else normalises the gradient (Adam and its kin, Lion's sign,
# Muon's orthogonal matrix) or is unknown to us, and gets the more careful root.
_LINEAR_OPTIMIZERS = frozenset({"sgd"})

_WARMUP_EPOCHS = 5
# Goyal's five epochs are 6 % of 90; a short run should not spend itself on them.
_WARMUP_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Batch and learning rate of a plan, after the rule was applied.

    `global_batch_size` is the rows of one step over all replicas, None when
    the batch is the data's own; `per_replica_batch_size` is the largest share
    of one replica. `learning_rate` is None when the base rate is unknown to
    the plan; the factor then applies to the rate that the trainer finds.
    `steps_per_epoch` counts steps of the global batch.
    """

    rule: Literal["off", "linear", "sqrt"] = "off"
    global_batch_size: int | None = None
    per_replica_batch_size: int | None = None
    learning_rate: float | None = None
    base_learning_rate: float | None = None
    learning_rate_factor: float = 1.0
    warmup_steps: int = 0
    steps_per_epoch: int | None = None
    notes: tuple[str, ...] = ()
