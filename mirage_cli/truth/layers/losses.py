"""Losses of classifications."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mirage_cli.truth.calls.call import Call, meaning
from mirage_cli.truth.calls.values import Array, Tensor, Value


def _loss(call: Call, logs: Array) -> Tensor:
    """The negative log likelihood of targets, reduced as the node says; ignored targets count nothing."""
    target, given = call.array(1).astype(np.int64), call.maybe(2)
    kept = np.ones(target.shape, np.bool_)
    if call.has("ignore_index"):
        kept = target != call.integer("ignore_index")
    safe = np.where(kept, target, 0)
    safe = np.where(safe < 0, safe + logs.shape[1], safe)
    picked = -np.take_along_axis(logs, safe[:, None], 1)[:, 0]
    weights = (np.ones(target.shape) if given is None else given[safe]) * kept
    loss = np.where(kept, picked * weights, 0.0)
    match call.text("reduction", "mean"):
        case "none":
            return call.like(loss)
        case "sum":
            return call.like(np.sum(loss))
    return call.like(np.sum(loss) / np.sum(weights))


@meaning("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(call: Call) -> Tensor:
    return _loss(call, call.array(0))


@meaning("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(call: Call) -> Sequence[Value]:
    x = call.array(0)
    shifted = x - np.max(x, axis=1, keepdims=True, initial=-np.inf)
    logs = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
    return [_loss(call, logs), call.like(logs)]
