"""A network whose answers can be worked out by hand: real routing and prediction, blocks and critics of one line.

Images are 1×8×8 and made of four 4×4 quadrants. Level 1 has two capsules, c_n = g_n x with g = (1, 3), and weights
b = (1/4, 3/4), so it routes on 2.5 x. Level 2 averages every quadrant; its capsule 0 has the vector (q, 0), its capsule
1 the vector (0, q), and W is the identity: capsule 0 speaks for class 0, capsule 1 for class 1.
Its weights are (1 2 / 3 4)/20 for capsule 0 and (4 3 / 2 1)/20 for capsule 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twins import tiny
from wcapsnet.data import Split
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.network import Level, WCapsNet, WCapsNetConfig

LAST = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[4.0, 3.0], [2.0, 1.0]]])  # /20: b of the last level


class Gains(nn.Module):
    """c_n = g_n x"""

    def __init__(self, *gains: float):
        super().__init__()
        self.gains = torch.tensor(gains)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("n,mkij->mnkij", self.gains.to(x), x)


class Quadrants(nn.Module):
    """c_0 = (q, 0), c_1 = (0, q) with q the mean of a quadrant"""

    def forward(self, x: Tensor) -> Tensor:
        q = F.avg_pool2d(x, 4)[:, 0]  # (m, 2, 2)
        zero = torch.zeros_like(q)
        return torch.stack([torch.stack([q, zero], 1), torch.stack([zero, q], 1)], 1)


class Fixed(nn.Module):
    """The same fitness for every image."""

    def __init__(self, a: Tensor):
        super().__init__()
        self.a = a

    def forward(self, c: Tensor) -> Tensor:
        return self.a.to(c).expand(len(c), *self.a.shape)


class Partial(nn.Module):
    """Fitness ln(3, 1) for an image that is bright on the whole, ln(1, 3) for one that is dark"""

    def forward(self, c: Tensor) -> Tensor:
        bright = c[:, 0].flatten(1).mean(1) > 0
        return torch.where(bright[:, None], torch.tensor([3.0, 1.0]), torch.tensor([1.0, 3.0])).log()


def toy() -> WCapsNet:
    config = WCapsNetConfig(
        classes=2,
        channels=1,
        height=8,
        width=8,
        levels=(Level(2, 1, 1, 1), Level(2, 1, 2, 4)),
        init_channels=1,
        dense_layers=1,
        decoder_channels=(2, 2),
        extra_class=False,
    )
    torch.manual_seed(0)
    network = WCapsNet(config)
    network.init_conv = nn.Identity()
    network.capsules[0], network.capsules[1] = Gains(1.0, 3.0), Quadrants()
    network.routers[0].critic = Fixed(torch.tensor([1.0, 3.0]).log())
    network.routers[1].critic = Fixed(LAST.log())
    network.projection = nn.Parameter(torch.eye(2))
    return network.eval()


def split_of(images: Tensor, labels: list[int]) -> DeviceSplit:
    """Images that reach the network as they are given here, to 1/255: their values are in [−1, 1]."""
    pixels = ((images + 1) * 127.5).round().to(torch.uint8)
    channels = images.shape[1]
    return DeviceSplit(Split(pixels, torch.tensor(labels)), (0.5,) * channels, (0.5,) * channels, torch.device("cpu"))


def random_images(number: int, seed: int = 1) -> DeviceSplit:
    """Images and labels of twins.tiny, drawn at random"""
    generator, config = torch.Generator().manual_seed(seed), tiny()
    shape = (number, config.channels, config.height, config.width)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    split = Split(pixels, torch.randint(0, config.classes, (number,), generator=generator))
    return DeviceSplit(split, (0.5,) * config.channels, (0.25,) * config.channels, torch.device("cpu"))


def quadrants(*values: float) -> Tensor:
    """(1, 8, 8) from the values of its quadrants, row by row"""
    return torch.tensor(values, dtype=torch.float32).view(1, 1, 2, 2).repeat_interleave(4, 2).repeat_interleave(4, 3)[0]
