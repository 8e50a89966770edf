"""Section IV-B: a critic that is handed one capsule after the other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .compare import Tensors, Twin, norm_tensors, prefixed


class SpectralConvTwin(Twin):
    """Miyato et al.: W / (uᵀ W v); one power iteration a training step, no gradient through u and v."""

    def __init__(self, channels: int, out_channels: int, kernel: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, kernel, stride, padding=kernel // 2)
        self.register_buffer("u", torch.zeros(out_channels))
        self.register_buffer("v", torch.zeros(channels * kernel * kernel))

    def kernel(self) -> Tensor:
        matrix = self.conv.weight.reshape(self.conv.weight.shape[0], -1)
        if self.training:
            with torch.no_grad():
                v = matrix.T @ self.u
                self.v = v / (v * v).sum().sqrt()
                u = matrix @ self.v
                self.u = u / (u * u).sum().sqrt()
        sigma = sum(
            self.u[row] * matrix[row, column] * self.v[column]
            for row in range(matrix.shape[0])
            for column in range(matrix.shape[1])
        )
        return self.conv.weight / sigma

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel(), self.conv.bias, self.conv.stride, self.conv.padding)

    def tensors(self) -> Tensors:
        return {"weight": self.conv.weight, "bias": self.conv.bias, "u": self.u, "v": self.v}


class CriticTwin(Twin):
    """Dropout is left out: a twin is compared with a critic whose dropout rate is 0."""

    def __init__(self, channels: list[int], kernel: int, stride: int):
        super().__init__()
        self.layers = nn.ModuleList(
            SpectralConvTwin(channels[at], channels[at + 1], kernel, stride) for at in range(len(channels) - 1)
        )
        self.norm = nn.BatchNorm2d(1)

    def forward(self, c: Tensor) -> Tensor:
        c = c.detach()  # "The gradient from the critic to the capsules is stopped"
        kernels = [layer.kernel() for layer in self.layers]  # one power iteration a step, not one a capsule
        said = []
        for n in range(c.shape[1]):
            x = c[:, n]
            for at, (layer, kernel) in enumerate(zip(self.layers, kernels, strict=True)):
                x = F.conv2d(x, kernel, layer.conv.bias, layer.conv.stride, layer.conv.padding)
                if at < len(kernels) - 1:
                    x = x.relu()
            said.append(x)
        # The critic is one network for all capsules of the level, so its batch norm is too.
        normed = self.norm(torch.cat(said)).split(len(c))
        return torch.stack([1 / (1 + (-x[:, 0]).exp()) for x in normed], 1)  # (m, n, i', j')

    def tensors(self) -> Tensors:
        named = prefixed("norm", norm_tensors(self.norm))
        for at, layer in enumerate(self.layers):
            named |= prefixed(f"layers.{at}", layer.tensors())
        return named


class BlockCriticTwin(CriticTwin):
    """ "layers are added until the size is downsampled to one"; layer j has j · k_critic channels, the last has one."""

    def __init__(self, dimension: int, height: int, width: int, base: int):
        layers = 0
        while layers == 0 or max(height, width) > 1:
            height, width, layers = (height + 1) // 2, (width + 1) // 2, layers + 1
        super().__init__([dimension] + [j * base for j in range(1, layers)] + [1], 3, 2)

    def forward(self, c: Tensor) -> Tensor:
        a = super().forward(c)
        assert a.shape[2:] == (1, 1)
        return a[:, :, 0, 0]


class VectorCriticTwin(CriticTwin):
    """4 layers of 1×1 convolutions with a stride of 1"""

    def __init__(self, dimension: int, base: int):
        super().__init__([dimension, base, 2 * base, 3 * base, 1], 1, 1)


class JointCriticTwin(Twin):
    """D44, position by position: what it says of a block depends on all blocks there, and on their means."""

    def __init__(self, capsules: int, dimension: int, width: int, per_position: bool):
        super().__init__()
        size = capsules * dimension
        self.whole, self.whole_norm = nn.Conv2d(size, width, 1, bias=False), nn.BatchNorm1d(width)
        self.local, self.local_norm = nn.Conv2d(size, width, 1, bias=False), nn.BatchNorm1d(width)
        self.last, self.per_position = nn.Conv2d(width, capsules, 1), per_position

    def forward(self, c: Tensor) -> Tensor:
        m, n, k, rows, columns = c.shape
        vectors = [[[c[s, :, :, i, j].reshape(n * k) for j in range(columns)] for i in range(rows)] for s in range(m)]
        means = torch.stack([sum(v for row in rows for v in row) / (len(rows) * len(rows[0])) for rows in vectors])
        whole = self.whole_norm(means @ self.whole.weight[:, :, 0, 0].T)
        if not self.per_position:
            return torch.stack([self.said(h) for h in whole])
        flat = torch.stack([v for rows in vectors for row in rows for v in row])
        local = self.local_norm(flat @ self.local.weight[:, :, 0, 0].T).split(rows * columns)
        said = [self.said(h + near) for h, near in zip(whole, local, strict=True)]
        return torch.stack([a.T.reshape(n, rows, columns) for a in said])

    def said(self, h: Tensor) -> Tensor:
        return 1 / (1 + (-(h.relu() @ self.last.weight[:, :, 0, 0].T + self.last.bias)).exp())

    def tensors(self) -> Tensors:
        named: Tensors = {"last.weight": self.last.weight, "last.bias": self.last.bias}
        named |= {"whole.0.weight": self.whole.weight}
        named |= prefixed("whole.1", norm_tensors(self.whole_norm))
        if self.per_position:
            named |= {"local.0.weight": self.local.weight}
            named |= prefixed("local.1", norm_tensors(self.local_norm))
        return named
