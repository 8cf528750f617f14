"""The loop one would write by hand: no framework."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor
from workload import Gate, load, local_sgd


def main(folder: str, out: Path) -> None:
    workload = load(folder)
    model, gate = workload.model, Gate(workload, out)
    weights: list[Tensor] = list(model.parameters())
    server = [weight.detach().clone() for weight in weights]
    for cohort in workload.cohorts:
        mean = [torch.zeros_like(weight) for weight in server]
        share = 1 / len(cohort)  # n_k / n: all clients have as many samples
        for client in cohort:
            with torch.no_grad():
                torch._foreach_copy_(weights, server)
            local_sgd(model, workload.batches[client], workload.lr, workload.epochs)
            with torch.no_grad():
                torch._foreach_add_(mean, weights, alpha=share)
        server = mean
        gate.lap()
    names = [name for name, _ in model.named_parameters()]
    gate.write(dict(zip(names, server, strict=True)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
