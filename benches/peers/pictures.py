"""PyTorch twins of `autoencoder` and `stn`, for a side-by-side of the time of a step.

Prints one JSON line a network: the same layers, loss, batch size and optimizer as `windlass train` has by default.
The median time of a step is given.

    python pictures.py [--threads 2] [--seconds 5] [autoencoder] [noise] [masking] [variational] [stn] [stn-off]

`--adam fused` takes PyTorch's fused Adam instead of its default.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Autoencoder(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.variant = variant
        self.encoder, self.output = nn.Linear(784, 200), nn.Linear(200, 784)
        if variant == "variational":
            self.mean, self.precision, self.decoder = nn.Linear(200, 20), nn.Linear(200, 20), nn.Linear(20, 200)

    def forward(self, target):
        seen = target
        if self.variant == "noise":
            seen = target + 0.5 * torch.randn_like(target)
        if self.variant == "masking":
            seen = F.dropout(target, 0.25)
        hidden, divergence = F.softplus(self.encoder(seen)), 0.0
        if self.variant == "variational":
            mean, log_precision = self.mean(hidden), F.softplus(self.precision(hidden))
            variance = torch.exp(-log_precision)
            divergence = 0.5 * (mean**2 + variance + log_precision - 1.0).sum()
            hidden = F.softplus(self.decoder(mean + variance.sqrt() * torch.randn_like(mean)))
        return 0.5 * ((self.output(hidden) - target) ** 2).sum() + divergence


class SpatialTransformer(nn.Module):
    def __init__(self, transformer):
        super().__init__()
        if transformer:
            self.localisation, self.transform = nn.Linear(1600, 20), nn.Linear(20, 6)
            with torch.no_grad():
                self.transform.weight.zero_()
                self.transform.bias.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
        self.transformer = transformer
        self.first, self.second = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 2, 1)
        self.hidden, self.output = nn.Linear(1600, 1024), nn.Linear(1024, 10)

    def forward(self, images, labels):
        if self.transformer:
            units = F.dropout(torch.tanh(self.localisation(images.flatten(1))), 0.2)
            transforms = torch.tanh(self.transform(units)).view(-1, 2, 3)
            grid = F.affine_grid(transforms, list(images.shape), align_corners=True)
            images = F.grid_sample(images, grid, align_corners=True)
        seen = F.relu(self.second(F.relu(self.first(images))))
        scores = self.output(F.relu(self.hidden(seen.flatten(1))))
        return F.cross_entropy(scores, labels)


def networks():
    autoencoder = lambda variant: (lambda: Autoencoder(variant), 128, lambda size: (torch.randn(size, 784),))
    canvases = lambda size: (torch.rand(size, 1, 40, 40), torch.randint(0, 10, (size,)))
    return {
        "autoencoder": autoencoder("plain"),
        "noise": autoencoder("noise"),
        "masking": autoencoder("masking"),
        "variational": autoencoder("variational"),
        "stn": (lambda: SpatialTransformer(True), 101, canvases),
        "stn-off": (lambda: SpatialTransformer(False), 101, canvases),
    }


def milliseconds_a_step(make, batch_size, batch, adam, seconds):
    torch.manual_seed(1)
    network, data = make(), batch(batch_size)
    optimizer = torch.optim.Adam(network.parameters(), 0.001, fused=True if adam == "fused" else None)

    def step():
        optimizer.zero_grad()
        network(*data).backward()
        optimizer.step()

    for _ in range(20):
        step()
    times, began = [], time.perf_counter()
    while time.perf_counter() - began < seconds:
        started = time.perf_counter()
        step()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["autoencoder", "stn"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--adam", choices=["default", "fused"], default="default")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in arguments.networks:
        make, batch_size, batch = networks()[name]
        median = milliseconds_a_step(make, batch_size, batch, arguments.adam, arguments.seconds)
        line = {"peer": "pytorch", "network": name, "batch": batch_size, "adam": arguments.adam, "ms": round(median, 3)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
