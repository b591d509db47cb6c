"""Checking and clipping of messages: whatever an agent sends becomes a vector of M finite numbers of bounded norm."""

import math
from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor


def usual_norm(n_features: int, P: int) -> float:
    """Return the clip norm `S = 1.1 sqrt(M P)`, with M = n_features.

    A message is clipped to norm `S / sqrt(P)`, which is 1.1 sqrt(M). If messages are weight vectors of GP draws, their
    norms are near sqrt(M), so clipping changes few of them.
    """
    return round(1.1 * math.sqrt(n_features * P), 3)


def accept(messages: Tensor | Sequence[Tensor | None], chosen: Tensor, n_features: int) -> tuple[Tensor, int]:
    """Return the chosen messages, k x M float64, with zero vectors for unusable ones, and the number of unusable ones.

    Only a dense vector of M finite real numbers is usable.
    """
    given = 0 if isinstance(messages, Tensor) and messages.ndim == 0 else len(messages)  # type: ignore[arg-type]
    complete = len(chosen) == 0 or int(chosen.max()) < given
    if _plain(messages) and messages.ndim == 2 and messages.shape[1] == n_features and complete:
        received = messages.detach()[chosen].double()
    else:
        rows = messages.unbind(0) if _plain(messages) and messages.ndim > 0 else messages
        received = torch.full((len(chosen), n_features), math.nan, dtype=torch.float64, device="cpu")
        for row, n in enumerate(chosen.tolist()):
            message = rows[n] if not isinstance(rows, Tensor) and n < len(rows) else None
            if _plain(message) and message.shape == (n_features,):
                received[row] = message.detach().double()
    finite = torch.isfinite(received).all(1)
    return torch.where(finite[:, None], received, 0.0), int((~finite).sum())


def _plain(message: object) -> TypeGuard[Tensor]:
    """Return True for a dense real tensor with storage."""
    if not isinstance(message, Tensor) or message.layout != torch.strided or message.device.type == "meta":
        return False
    return not (message.is_complex() or message.is_quantized)


def clip(messages: Tensor, norm: float) -> tuple[Tensor, int]:
    """Return the messages (k x M), each scaled down to L2 norm at most `norm`, and how many of them were longer."""
    unit, length, largest = _direction(messages)
    longer = length > norm / largest
    return torch.where(longer, unit * (norm / length), messages), int(longer.sum())


def scale_to(messages: Tensor, norm: float) -> Tensor:
    """Scale every message (k x M) to L2 norm `norm`; a message that is zero or almost zero becomes zero."""
    unit, length, _ = _direction(messages)
    return torch.where(length >= 0.5, unit * (norm / length.clamp(min=0.5)), 0.0)


def _direction(messages: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Divide each message (k x M) by its largest absolute entry; return the quotients, their norms and the divisors."""
    largest = messages.abs().amax(1, keepdim=True).clamp(min=torch.finfo(messages.dtype).tiny)  # k x 1
    unit = messages / largest
    return unit, unit.norm(dim=1, keepdim=True), largest
