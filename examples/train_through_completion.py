"""Train a small network through the completion, and compare it with the same network trained on its own loss.

The network corrects a relative depth map from the image. Trained on its own, it minimises the error of its depth after
the best gain and offset. Trained through `leadline.torch.Completion`, it minimises the error of the completed depth, so
it spends its capacity on what the measurements do not tell. Runs in about a minute on a CPU:

    python examples/train_through_completion.py

It prints the error of both on rooms that neither has seen, and writes a plot if matplotlib is installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import leadline.torch as lt
from leadline.datasets.rendered import network_like_prior, render

SIZE = (96, 128)  # height, width
STRIDE = 16  # every 16th pixel in both directions is measured
TRAINING_ROOMS, TEST_ROOMS = 24, 8


def make_rooms(first: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images (N, 3, H, W) in 0 to 1, priors and reference depths (N, 1, H, W)."""
    rooms = [render(SIZE[1], SIZE[0], seed=first + k) for k in range(count)]
    images = np.stack([room.image.transpose(2, 0, 1) for room in rooms]).astype(np.float32) / 255.0
    priors = np.stack([network_like_prior(room.reference, seed=k)[None] for k, room in enumerate(rooms)])
    depths = np.stack([room.reference[None] for room in rooms])
    return torch.from_numpy(images), torch.from_numpy(priors).float(), torch.from_numpy(depths).float()


def measure(depth: Tensor) -> Tensor:
    """The reference at every STRIDE-th pixel, zero elsewhere."""
    sparse = torch.zeros_like(depth)
    half = STRIDE // 2
    sparse[..., half::STRIDE, half::STRIDE] = depth[..., half::STRIDE, half::STRIDE]
    return sparse


class Corrector(nn.Module):
    """A small convolutional network that multiplies the prior by a positive correction."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 4
        for dilation in (1, 2, 4, 8, 1):
            layers += [nn.Conv2d(channels, width, 3, padding=dilation, dilation=dilation), nn.ReLU()]
            channels = width
        self.body = nn.Sequential(*layers, nn.Conv2d(width, 1, 1))
        nn.init.zeros_(self.body[-1].weight)
        nn.init.zeros_(self.body[-1].bias)

    def forward(self, image: Tensor, prior: Tensor) -> Tensor:
        logs = torch.log(prior)
        logs = logs - logs.mean(dim=(-2, -1), keepdim=True)
        return prior * torch.exp(0.5 * torch.tanh(self.body(torch.cat((image, logs), dim=1))))


def log_error(depth: Tensor, reference: Tensor, sparse: Tensor) -> Tensor:
    """Mean absolute error of log depth where nothing was measured."""
    return (torch.log(depth) - torch.log(reference)).abs()[sparse == 0].mean()


def train(through: bool, rooms: tuple[Tensor, Tensor, Tensor], steps: int, batch: int) -> tuple[Corrector, list[float]]:
    torch.manual_seed(0)
    network = Corrector()
    completion = lt.Completion(options="paper")
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    images, priors, depths = rooms
    losses = []
    for _ in range(steps):
        chosen = torch.randint(len(images), (batch,))
        prior, depth = network(images[chosen], priors[chosen]), depths[chosen]
        sparse = measure(depth)
        predicted = completion(prior, sparse).depth if through else lt.align(prior, depth, mode="log").calibrated
        loss = log_error(predicted, depth, sparse)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return network, losses


@torch.no_grad()
def evaluate(network: Corrector | None, rooms: tuple[Tensor, Tensor, Tensor]) -> float:
    """Mean relative error of the completed depth, with the network's prior or with the uncorrected one."""
    images, priors, depths = rooms
    sparse = measure(depths)
    prior = priors if network is None else network(images, priors)
    completed = lt.complete(prior, sparse, options="paper").depth
    return float(((completed - depths).abs() / depths)[sparse == 0].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--plot", type=Path, default=Path("train_through_completion.png"))
    arguments = parser.parse_args()
    training, test = make_rooms(0, TRAINING_ROOMS), make_rooms(1000, TEST_ROOMS)
    print(f"uncorrected prior: AbsRel {evaluate(None, test):.4f} on unseen rooms")
    curves = {}
    for name, through in (("on its own loss", False), ("through the completion", True)):
        network, losses = train(through, training, arguments.steps, arguments.batch)
        curves[name] = losses
        print(f"trained {name}: AbsRel {evaluate(network, test):.4f} on unseen rooms")
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return
    figure, axes = plt.subplots(figsize=(6, 3.5))
    for name, losses in curves.items():
        axes.plot(np.convolve(losses, np.ones(20) / 20, mode="valid"), label=name)
    axes.set(xlabel="step", ylabel="loss, mean of 20 steps", yscale="log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(arguments.plot, dpi=150)
    print(f"wrote {arguments.plot}")


if __name__ == "__main__":
    main()
