"""A model that is not a language model: a small convolutional network on images of handwritten digits.

The images are scikit-learn's `load_digits`: 1797 of 8 x 8 pixels, from E. Alpaydin and C. Kaynak, "Optical Recognition
of Handwritten Digits" (UCI Machine Learning Repository, 1998).
"""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .training import Batch, Task

KINDS = {
    "first.weight": "first convolution",
    "second.weight": "convolution",
    "third.weight": "convolution",
    "linear.weight": "linear",
    "classes.weight": "classes",
}


def load_digits() -> tuple[Tensor, Tensor]:
    """Return the images, (1797, 1, 8, 8) from 0 to 1, and their classes, (1797,).

    >>> images, classes = load_digits()
    >>> tuple(images.shape), classes[:5].tolist()
    ((1797, 1, 8, 8), [0, 1, 2, 3, 4])
    """
    from sklearn import datasets

    found = datasets.load_digits()
    return torch.from_numpy(found.images).float()[:, None] / 16, torch.from_numpy(found.target).long()


def make_task(*, width: int, seed: int, size: int) -> Task:
    """Make a network with `width` channels in its second layer, and an endless stream of batches of `size` images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # torch's modules draw their initial weights from the global generator
        network = _network(width)

    def loss(batch: Batch, progress: float) -> Tensor:
        return cross_entropy(network(batch[0]), batch[1])

    return Task(network, loss, _batches(size, np.random.default_rng(seed)))


def _network(width: int) -> nn.Module:
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        first=nn.Conv2d(1, width // 2, 3, padding=1),
        relu1=nn.ReLU(),
        second=nn.Conv2d(width // 2, width, 3, padding=1, stride=2),
        relu2=nn.ReLU(),
        third=nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
        relu3=nn.ReLU(),
        flat=nn.Flatten(),
        linear=nn.Linear(8 * width, 2 * width),
        relu4=nn.ReLU(),
        classes=nn.Linear(2 * width, 10),
    )
    return nn.Sequential(layers)


def _batches(size: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield batches, each image once in every pass over the data."""
    images, classes = load_digits()
    while True:
        order = rng.permutation(len(images))
        for start in range(0, len(order) - size + 1, size):
            chosen = torch.from_numpy(order[start : start + size])
            yield images[chosen], classes[chosen]
