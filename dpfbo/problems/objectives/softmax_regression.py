"""Multinomial logistic regression by mini-batch SGD: many data sets and many settings as one tensor program.

The weights start at zero and every gradient is a sum of training rows, so they are W = A X at any time. The
coefficients A of the n training rows are trained, through the Gram matrix X X^T, instead of W on all features. In exact
arithmetic that is the same descent, and it is cheaper when there are fewer rows than features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfbo.gp.batches import PRODUCTS, filled


@dataclass(frozen=True)
class DataSets:
    """N data sets of up to n training and v validation rows, shorter ones padded with zeros.

    gram: X X^T of the training rows, N x n x n. cross: X X_v^T, training by validation rows, N x n x v. target: the
    training labels as 0 and 1, N x C x n. rows: number of training rows without padding, N. label: labels of the
    validation rows, N x v, -1 for padding.
    """

    gram: Tensor
    cross: Tensor
    target: Tensor
    rows: Tensor
    label: Tensor

    def __getitem__(self, index: Tensor) -> DataSets:
        """The data sets of an index."""
        return DataSets(self.gram[index], self.cross[index], self.target[index], self.rows[index], self.label[index])

    def to(self, device: torch.device) -> DataSets:
        """The same data sets on a device."""
        return DataSets(*(field.to(device) for field in (self.gram, self.cross, self.target, self.rows, self.label)))


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters of k models on each of N data sets, all N x k: rows a batch, L2 penalty, learning rate."""

    batch_size: Tensor
    l2: Tensor
    learning_rate: Tensor

    def __getitem__(self, index: Tensor) -> Settings:
        """The settings of some data sets."""
        return Settings(self.batch_size[index], self.l2[index], self.learning_rate[index])


def data_sets(
    training: Sequence[tuple[np.ndarray, np.ndarray]], validation: Sequence[tuple[np.ndarray, np.ndarray]], classes: int
) -> DataSets:
    """The data sets from their (X, y), labels 0..classes-1; float32."""
    n, v = (max(len(y) for _, y in half) for half in (training, validation))
    N, d = len(training), training[0][0].shape[1]
    X, X_v = np.zeros((N, n, d)), np.zeros((N, v, d))
    target, label = np.zeros((N, classes, n), np.float32), np.full((N, v), -1)
    for i, ((x, y), (x_v, y_v)) in enumerate(zip(training, validation, strict=True)):
        X[i, : len(y)], X_v[i, : len(y_v)] = x, x_v
        target[i, y, np.arange(len(y))] = 1.0
        label[i, : len(y_v)] = y_v
    rows, trained = np.array([len(y) for _, y in training]), torch.from_numpy(X)
    gram, cross = ((trained @ torch.from_numpy(other).mT).float() for other in (X, X_v))
    return DataSets(gram, cross, *map(torch.from_numpy, (target, rows, label)))


def fit(data: DataSets, settings: Settings, epochs: int, order: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients A, N x k x C x n, and intercepts b, N x k x C x 1, of the trained models.

    A step is that of plain SGD on `mean cross-entropy of the batch + l2 / 2 ||W||^2`, intercepts without penalty:
        W <- (1 - lr l2) W - lr / |B| sum_{i in B} (p_i - y_i) x_i^T,    b <- b - lr / |B| sum_{i in B} (p_i - y_i).
    In every epoch each model cuts a permutation of its rows into batches of its own size, the last one smaller if it
    must be (a size of n or more is gradient descent). Models with more batches in an epoch take more steps; the
    others wait meanwhile. Each model's result has the same bits whichever data sets share the call.

    order: U[0, 1) numbers, N x k x epochs x n; the ranks of a row of them are the permutation of that epoch.
    """
    batches = -(-data.rows[:, None] // settings.batch_size)  # N x k, batches in an epoch
    N, k = batches.shape
    classes, n = data.target.shape[1:]
    A, b = data.gram.new_zeros(N, k, classes, n), data.gram.new_zeros(N, k, classes, 1)
    of_row = _batch_of_row(data, settings, batches, order)
    for first in range(0, epochs * int(batches.max()), epochs):
        active = (first < epochs * batches).any(1).nonzero()[:, 0]
        some = active[filled(len(active), PRODUCTS, active.device)]
        steps = range(first, first + epochs)
        A[some], b[some] = _descend(data[some], settings[some], batches[some], of_row[some], steps, A[some], b[some])
    return A, b


def validation_accuracy(data: DataSets, A: Tensor, b: Tensor) -> Tensor:
    """Share of validation rows that each model gets right, N x k float64; a model that diverged gets none."""
    N, k, classes, _ = A.shape
    some = filled(N, PRODUCTS, A.device)
    logits = torch.bmm(A[some].flatten(1, 2), data.cross[some])[:N].unflatten(1, (k, classes)) + b  # N x k x C x v
    right = (logits.argmax(2) == data.label[:, None]) & logits.isfinite().all(2)
    return right.sum(-1).double() / (data.label >= 0).sum(-1, keepdim=True)


def _batch_of_row(data: DataSets, settings: Settings, batches: Tensor, order: Tensor) -> Tensor:
    """The index in the epoch of each training row's batch, N x k x epochs x n; -1 for padding."""
    real = torch.arange(order.shape[-1], device=order.device) < data.rows[:, None]  # N x n
    result = torch.where(real, 0, -1).short()[:, None, None].expand(order.shape).clone()
    several = batches > 1  # m models; the others have nothing to permute
    real = real[:, None].expand(*batches.shape, -1)[several][:, None]  # m x 1 x n
    rank = torch.where(real, order[several], 2.0).argsort(dim=-1, stable=True).argsort(-1)  # m x epochs x n
    result[several] = torch.where(real, rank // settings.batch_size[several][:, None, None], -1).short()
    return result


def _descend(
    data: DataSets, settings: Settings, batches: Tensor, of_row: Tensor, steps: range, A: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """Coefficients and intercepts (N x k x C x n and N x k x C x 1) after `steps` of each model's own count."""
    N, k, classes, n = A.shape
    dataset, model = torch.arange(N, device=A.device)[:, None], torch.arange(k, device=A.device)
    target = data.target[:, None]
    for step in steps:
        active = step < len(steps) * batches  # N x k
        epoch = (step // batches).clamp(max=len(steps) - 1)
        batch = of_row[dataset, model, epoch] == torch.where(active, step % batches, -2)[..., None]  # N x k x n
        rate = settings.learning_rate / batch.sum(-1).clamp(min=1)
        shrink = torch.where(active, 1 - settings.learning_rate * settings.l2, 1.0)
        logits = torch.bmm(A.view(N, k * classes, n), data.gram).view(A.shape) + b
        gradient = (_softmax(logits) - target) * (batch * rate[..., None])[:, :, None]  # N x k x C x n
        A = A * shrink[..., None, None] - gradient
        b = b - gradient.sum(-1, keepdim=True)
    return A, b


def _softmax(logits: Tensor) -> Tensor:
    """Softmax over the classes, N x k x C x n; torch.softmax rounds by the number of data sets in the call."""
    odds = (logits - logits.amax(2, keepdim=True)).exp()
    return odds / odds.sum(2, keepdim=True)
