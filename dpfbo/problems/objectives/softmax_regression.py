"""Multinomial logistic regression by mini-batch SGD: many data sets and many settings as one tensor program.

The weights are W = A X with the n training rows X. SGD updates A through the Gram matrix X X^T.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dpfbo.gp import batches


@dataclass(frozen=True)
class DataSets:
    """N data sets of up to n training and v validation rows, padded with zeros.

    gram: X X^T with training rows X, N x n x n. cross: X X_v^T with validation rows X_v, N x n x v. target: one-hot
    training labels of C classes, N x C x n. rows: numbers of training rows, N. label: validation labels, N x v, -1 for
    padding.
    """

    gram: Tensor
    cross: Tensor
    target: Tensor
    rows: Tensor
    label: Tensor

    def __getitem__(self, index: Tensor) -> DataSets:
        return DataSets(*(part[index] for part in vars(self).values()))

    def to(self, device: torch.device) -> DataSets:
        """Return the data sets on a device."""
        return DataSets(*(part.to(device) for part in vars(self).values()))


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters of k models on each of N data sets, N x k each: rows per batch, L2 penalty, learning rate."""

    batch_size: Tensor
    l2: Tensor
    learning_rate: Tensor

    def __getitem__(self, index: Tensor) -> Settings:
        return Settings(*(part[index] for part in vars(self).values()))


def data_sets(
    training: Sequence[tuple[np.ndarray, np.ndarray]], validation: Sequence[tuple[np.ndarray, np.ndarray]], classes: int
) -> DataSets:
    """Build float32 data sets: data set i has training rows `training[i]` and validation rows `validation[i]`.

    Each entry of `training` and `validation` is a pair (X, y) of features X and labels y, which are 0..classes-1.
    """

    def padded(parts: Iterable[np.ndarray], value: float) -> Tensor:
        return pad_sequence(list(map(torch.from_numpy, parts)), batch_first=True, padding_value=value)

    X, X_v = (padded((x for x, _ in half), 0.0) for half in (training, validation))  # N x n x d, N x v x d
    y, label = (padded((y for _, y in half), -1) for half in (training, validation))
    target = (y[:, None] == torch.arange(classes, device="cpu")[:, None]).float()  # N x C x n
    gram, cross = ((X @ other.mT).float() for other in (X, X_v))
    return DataSets(gram, cross, target, (y >= 0).sum(1), label)


def fit(data: DataSets, settings: Settings, epochs: int, order: Tensor) -> tuple[Tensor, Tensor]:
    """Train k models on each of N data sets; return coefficients A (N x k x C x n) and intercepts b (N x k x C x 1).

    For C classes, the weights are W = A X with the n training rows X. Each step is plain SGD on `mean cross-entropy of
    the batch + l2 / 2 |W|^2`, without a penalty on intercepts:

        W <- (1 - lr l2) W - lr / |B| sum_{i in B} (p_i - y_i) x_i^T,    b <- b - lr / |B| sum_{i in B} (p_i - y_i)

    In every epoch, each model splits a permutation of its rows into batches of its own batch size; the last batch may
    be smaller. A model's result is bit for bit the same, whichever other data sets are in the call.

    order: uniform numbers in [0, 1), N x k x epochs x n; the ranks of an epoch's numbers are the permutation.
    """
    counts = -(-data.rows[:, None] // settings.batch_size)  # N x k, batches in an epoch
    N, k = counts.shape
    classes, n = data.target.shape[1:]
    A, b = data.gram.new_zeros(N, k, classes, n), data.gram.new_zeros(N, k, classes, 1)
    of_row = _batch_of_row(data, settings, counts, order)
    for first in range(0, epochs * int(counts.max()), epochs):
        active = (first < epochs * counts).any(1).nonzero()[:, 0]
        some = active[batches.filled(len(active), device=active.device)]
        steps = range(first, first + epochs)
        A[some], b[some] = _descend(data[some], settings[some], counts[some], of_row[some], steps, A[some], b[some])
    return A, b


def validation_accuracy(data: DataSets, A: Tensor, b: Tensor) -> Tensor:
    """Return the validation accuracy of each model, N x k float64; 0 for a model that diverged."""
    N, k, classes, _ = A.shape
    some = batches.filled(N, device=A.device)
    logits = torch.bmm(A[some].flatten(1, 2), data.cross[some])[:N].unflatten(1, (k, classes)) + b  # N x k x C x v
    right = (logits.argmax(2) == data.label[:, None]) & logits.isfinite().all(2)
    return right.sum(-1).double() / (data.label >= 0).sum(-1, keepdim=True)


def _batch_of_row(data: DataSets, settings: Settings, counts: Tensor, order: Tensor) -> Tensor:
    """Return the batch number of each training row in each epoch, N x k x epochs x n; -1 for padding."""
    real = torch.arange(order.shape[-1], device=order.device) < data.rows[:, None]  # N x n
    result = torch.where(real, 0, -1).short()[:, None, None].expand(order.shape).clone()
    many = counts > 1  # m models; models with one batch need no permutation
    real = real[:, None].expand(*counts.shape, -1)[many][:, None]  # m x 1 x n
    rank = torch.where(real, order[many], 2.0).argsort(dim=-1, stable=True).argsort(-1)  # m x epochs x n
    result[many] = torch.where(real, rank // settings.batch_size[many][:, None, None], -1).short()
    return result


def _descend(
    data: DataSets, settings: Settings, counts: Tensor, of_row: Tensor, steps: range, A: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """Return A (N x k x C x n) and b (N x k x C x 1) after `steps`; a model past its last epoch stays unchanged."""
    N, k, classes, n = A.shape
    dataset, model = torch.arange(N, device=A.device)[:, None], torch.arange(k, device=A.device)
    target = data.target[:, None]
    for step in steps:
        active = step < len(steps) * counts  # N x k
        epoch = (step // counts).clamp(max=len(steps) - 1)
        batch = of_row[dataset, model, epoch] == torch.where(active, step % counts, -2)[..., None]  # N x k x n
        rate = settings.learning_rate / batch.sum(-1).clamp(min=1)
        shrink = torch.where(active, 1 - settings.learning_rate * settings.l2, 1.0)
        logits = torch.bmm(A.view(N, k * classes, n), data.gram).view(A.shape) + b
        gradient = (_softmax(logits) - target) * (batch * rate[..., None])[:, :, None]  # N x k x C x n
        A = A * shrink[..., None, None] - gradient
        b = b - gradient.sum(-1, keepdim=True)
    return A, b


def _softmax(logits: Tensor) -> Tensor:
    """Return the softmax over classes, N x k x C x n, with rounding that does not depend on N."""
    odds = (logits - logits.amax(2, keepdim=True)).exp()
    return odds / odds.sum(2, keepdim=True)
