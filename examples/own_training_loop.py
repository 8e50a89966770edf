"""Your own training loop around the network and the paper's objective, with a PyTorch DataLoader.

python examples/own_training_loop.py           train
python examples/own_training_loop.py FOLDER    and save the network there
"""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import wcapsnet
from wcapsnet.data import DataConfig, load_dataset
from wcapsnet.objective import PAPER, objective


def main(steps: int = 140, folder: str | None = None) -> list[float]:
    torch.manual_seed(0)
    data = load_dataset(DataConfig(source="sample", validation=1000))  # the digits inside the package
    images, labels = data.train.images.float() / 255, data.train.labels
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    network = wcapsnet.create("wcapsnet-quick", channels=1, size=28)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    losses = []
    for _, (x, y) in zip(range(steps), loader, strict=False):
        output = network(x)  # logits, reconstruction, routings, best capsule, capsules
        terms = objective(output, x, y, PAPER)  # Eq. 15
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        losses.append(terms.named["cross_entropy"].item())
    network.eval()
    with torch.no_grad():
        # The last logit means "none of these" and is never a target: leave it out of your own argmax.
        predicted = network(data.test.images[:500].float() / 255).logits[:, :10].argmax(1)
    print(f"accuracy after {steps} steps: {(predicted == data.test.labels[:500]).float().mean():.1%}")
    if folder:  # for wcapsnet predict FOLDER digit.png; also explain, explore and export
        wcapsnet.Classifier(network, data.classes, mean=[0.0], std=[1.0]).save_pretrained(folder)
    return losses


if __name__ == "__main__":
    main(folder=sys.argv[1] if len(sys.argv) > 1 else None)
