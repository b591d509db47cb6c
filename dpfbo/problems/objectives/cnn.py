"""A small convolutional network for each of many small image sets, trained as one batched tensor program."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpfbo.gp import batches

CLASSES = 10
CHANNELS = (8, 16)
BATCH = 16  # images in a step
MOMENTUM = 0.9

_KERNELS = (5, 3)
_NETWORKS = 64  # networks that are trained at once; more at once would take more memory and no less time

Parameters = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # weights and biases of the three layers


@dataclass(frozen=True)
class ImageSets:
    """N image sets with I images in total, and the minibatches and start weights of their networks.

    patches: the output of `patches_of`, I x h^2 x 25. target: one-hot labels, I x 10. batches: image indices of each
    step, N x steps x BATCH. validation: image indices, N x v, -1 for padding. start: standard normal numbers, one for
    each of a network's W weights, N x W.
    """

    patches: Tensor
    target: Tensor
    batches: Tensor
    validation: Tensor
    start: Tensor

    def to(self, device: torch.device) -> ImageSets:
        """Return the image sets on a device."""
        return ImageSets(*(part.to(device) for part in vars(self).values()))


def patches_of(images: Tensor) -> Tensor:
    """Return the images' 5 x 5 patches for the first layer, `I x s x s -> I x h^2 x 25` with h = s / 2 rounded up."""
    padded = functional.pad(images, (2, 2, 2, 2))
    return padded.unfold(1, _KERNELS[0], 2).unfold(2, _KERNELS[0], 2).flatten(3).flatten(1, 2).contiguous()


def n_weights(side: int) -> int:
    """Return the number of weights, without biases, of a network for images of side x side pixels."""
    return sum(math.prod(shape) for shape in _shapes(_side(side)))


def batches_of(rows: np.ndarray, steps: int, generator: np.random.Generator) -> np.ndarray:
    """Return the minibatch of each step, `steps x BATCH`, taken from successive random permutations of `rows`."""
    passes = math.ceil(steps * BATCH / len(rows))
    order = np.concatenate([generator.permutation(rows) for _ in range(passes)])
    return order[: steps * BATCH].reshape(steps, BATCH)


def validation_accuracy(data: ImageSets, sets: Tensor, settings: Tensor) -> Tensor:
    """Train E networks (see `train`) and return the validation accuracy of each, E float64."""
    settings = settings.float()

    def accuracy(rows: Tensor) -> Tensor:
        return _right(data, sets[rows], train(data, sets[rows], settings[rows]))

    return batches.in_blocks(accuracy, len(sets), _NETWORKS, sets.device)


def train(data: ImageSets, sets: Tensor, settings: Tensor) -> Parameters:
    """Train E networks, network e on image set sets[e], and return their parameters after the last step.

    settings: learning rate, decay and L2 penalty of each network, E x 3. With g_s the gradient of `mean cross-entropy
    of the batch + L2 * sum of squared weights without biases`, step s = 0, 1, .. is

        v <- MOMENTUM v + g_s,    w <- w - learning rate / (1 + decay s) v

    The layers are a 5 x 5 convolution with 8 output channels, a ReLU, a 3 x 3 convolution with 16 output channels, a
    ReLU, and a linear layer to the classes. Both convolutions have stride 2.
    """
    rate, decay, l2 = settings.T[..., None, None]  # E x 1 x 1 each
    parameters = start_parameters(data.start[sets], math.isqrt(data.patches.shape[1]))
    velocity = tuple(torch.zeros_like(w) for w in parameters)
    for step in range(data.batches.shape[1]):
        rows = data.batches[sets, step]
        g = gradient(parameters, data.patches[rows], data.target[rows])
        for i, (w, v) in enumerate(zip(parameters, velocity, strict=True)):
            v.mul_(MOMENTUM).add_(g[i])
            if i % 2 == 0:  # weights, not biases
                v.add_(2 * l2 * w)
            w.sub_(rate / (1 + decay * step) * v)
    return parameters


def gradient(parameters: Parameters, patches: Tensor, target: Tensor) -> Parameters:
    """Return the gradient of each network's mean cross-entropy over its B images.

    patches: E x B x h^2 x 25, see `patches_of`. target: one-hot labels, E x B x 10.
    """
    E, B, places, _ = patches.shape
    W2, W3 = parameters[2], parameters[4]
    first, columns, second, outputs = _forward(parameters, patches)
    side = math.isqrt(places)
    d3 = (torch.softmax(outputs, -1) - target) / B  # E x B x 10
    d2 = (d3 @ W3.mT).view(second.shape) * (second > 0)  # E x B h2^2 x 16
    d1 = _fold((d2 @ W2.mT).view(E, B, _side(side) ** 2, W2.shape[1]), side).view(first.shape) * (first > 0)
    inputs = (patches.flatten(1, 2), columns, second.view(E, B, W3.shape[1]))
    weights = [x.mT @ d for x, d in zip(inputs, (d1, d2, d3), strict=True)]
    biases = [d.sum(1, keepdim=True) for d in (d1, d2, d3)]
    return weights[0], biases[0], weights[1], biases[1], weights[2], biases[2]


def logits(parameters: Parameters, patches: Tensor) -> Tensor:
    """Return the outputs of E networks for B images each, `E x B x h^2 x 25 -> E x B x 10`, h as in `patches_of`."""
    return _forward(parameters, patches)[-1]


def start_parameters(start: Tensor, side: int) -> Parameters:
    """Return the initial parameters of E networks: weights `start` (E x W) scaled as in He et al. 2015, and biases 0.

    start: standard normal numbers, one for each of a network's W weights. side: the number of patches along a side of
    an image.
    """
    sizes = _shapes(side)
    parts = start.split([math.prod(size) for size in sizes], 1)
    weights = [part.reshape(len(start), *size) * (2 / size[0]) ** 0.5 for part, size in zip(parts, sizes, strict=True)]
    biases = [start.new_zeros(len(start), 1, size[1]) for size in sizes]
    return weights[0], biases[0], weights[1], biases[1], weights[2], biases[2]


def _side(side: int) -> int:
    """Return the output's side for a layer with stride 2."""
    return (side + 1) // 2


def _shapes(side: int) -> list[tuple[int, int]]:
    """Return the numbers of inputs and outputs of each layer. side: the number of patches along a side of an image."""
    patch, inner = (kernel**2 for kernel in _KERNELS)
    return [(patch, CHANNELS[0]), (inner * CHANNELS[0], CHANNELS[1]), (_side(side) ** 2 * CHANNELS[1], CLASSES)]


def _right(data: ImageSets, sets: Tensor, parameters: Parameters) -> Tensor:
    """Return the validation accuracies of E networks as a float64 tensor of shape E."""
    rows = data.validation[sets]  # E x v
    real = rows >= 0
    rows = rows.clamp(min=0)
    right = logits(parameters, data.patches[rows]).argmax(-1) == data.target[rows].argmax(-1)
    return (right & real).sum(1).double() / real.sum(1)


def _forward(parameters: Parameters, patches: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden layer 1, the input patches of layer 2, hidden layer 2, and the outputs, for E x B images."""
    W1, b1, W2, b2, W3, b3 = parameters
    E, B, places, _ = patches.shape
    side = math.isqrt(places)
    first = torch.baddbmm(b1, patches.flatten(1, 2), W1).relu_()  # E x B h^2 x 8
    padded = functional.pad(first.view(E, B, side, side, CHANNELS[0]), (0, 0, 1, 1, 1, 1))
    windows = padded.unfold(2, 3, 2).unfold(3, 3, 2)  # E x B x h2 x h2 x 8 x 3 x 3
    columns = windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(E, B * _side(side) ** 2, W2.shape[1])
    second = torch.baddbmm(b2, columns, W2).relu_()  # E x B h2^2 x 16
    return first, columns, second, torch.baddbmm(b3, second.view(E, B, W3.shape[1]), W3)


def _fold(columns: Tensor, side: int) -> Tensor:
    """Add up overlapping 3 x 3 patches, `E x B x h2^2 x 9 c -> E x B x h x h x c` with h = side, h2 = `_side(h)`."""
    E, B, _, _ = columns.shape
    h2 = _side(side)
    columns = columns.view(E, B, h2, h2, 3, 3, CHANNELS[0])
    total = columns.new_zeros(E, B, side + 2, side + 2, CHANNELS[0])
    for i in range(3):
        for j in range(3):
            total[:, :, i : i + 2 * h2 - 1 : 2, j : j + 2 * h2 - 1 : 2] += columns[:, :, :, :, i, j]
    return total[:, :, 1:-1, 1:-1].contiguous()
