"""Section IV-C."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .compare import Tensors, Twin, norm_tensors, prefixed


def best_capsule_twin(b: Tensor, c: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best vector, its x and y in [-1, 1], and its place n, i, j: found by looking at each (D36)."""
    _, capsules, _, height, width = c.shape

    def coordinate(at: int, size: int) -> float:
        return 0.0 if size == 1 else -1 + 2 * at / (size - 1)

    vectors, positions, places = [], [], []
    for m in range(len(c)):
        everywhere = [(n, i, j) for n in range(capsules) for i in range(height) for j in range(width)]
        adds = {(n, i, j): b[m, n, i, j] * (c[m, n, :, i, j] @ w) for n, i, j in everywhere}  # to every class
        predicted = int(sum(adds.values()).argmax())
        largest = max(b[(m, *place)].item() for place in everywhere)
        heaviest = [place for place in everywhere if b[(m, *place)].item() >= 0.99 * largest]
        n, i, j = max(heaviest, key=lambda place: adds[place][predicted].item())
        vectors.append(c[m, n, :, i, j])
        positions.append(torch.tensor([coordinate(j, width), coordinate(i, height)], dtype=c.dtype))
        places.append(torch.tensor([n, i, j]))
    return torch.stack(vectors), torch.stack(positions), torch.stack(places)


class DecoderTwin(Twin):
    def __init__(self, dimension: int, channels: int, height: int, width: int, widths: tuple[int, int]):
        super().__init__()
        self.height, self.width, self.first = height, width, widths[0]
        self.rows, self.columns = (height + 3) // 4, (width + 3) // 4
        self.linear = nn.Linear(dimension + 2, widths[0] * self.rows * self.columns)
        self.norm1 = nn.BatchNorm2d(widths[0])
        self.conv1 = nn.ConvTranspose2d(widths[0], widths[1], 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(widths[1])
        self.conv2 = nn.ConvTranspose2d(widths[1], channels, 3, stride=2, padding=1)

    def forward(self, vector: Tensor, position: Tensor) -> Tensor:
        x = torch.stack([self.linear(torch.cat(pair)) for pair in zip(vector, position, strict=True)])
        x = x.reshape(len(x), self.first, self.rows, self.columns)
        x = self.conv1(self.norm1(x).relu(), output_size=(2 * self.rows, 2 * self.columns))
        x = self.conv2(self.norm2(x).relu(), output_size=(4 * self.rows, 4 * self.columns))
        return x[:, :, : self.height, : self.width]

    def tensors(self) -> Tensors:
        named: Tensors = {}
        for name in ("linear", "conv1", "conv2"):
            named |= {f"{name}.weight": getattr(self, name).weight, f"{name}.bias": getattr(self, name).bias}
        for name in ("norm1", "norm2"):
            named |= prefixed(name, norm_tensors(getattr(self, name)))
        return named
