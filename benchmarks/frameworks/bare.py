"""The loop one would write by hand: no framework, in one process or in several."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor
from workload import Gate, load, local_sgd


def train(rank: int, size: int, folder: str, out: Path) -> None:
    workload = load(folder)
    if size > 1:
        dist.init_process_group("gloo", f"file://{out}/meeting", rank=rank, world_size=size)
    model, gate = workload.model, Gate(workload, out) if rank == 0 else None
    weights: list[Tensor] = list(model.parameters())
    server = [weight.detach().clone() for weight in weights]
    for number, cohort in enumerate(workload.cohorts):
        if size > 1 and number % workload.turn == 0:
            dist.barrier()  # nobody begins while the first one waits at its gate
        mean = [torch.zeros_like(weight) for weight in server]
        share = 1 / len(cohort)  # n_k / n: all clients have as many samples
        for client in cohort[rank::size]:
            with torch.no_grad():
                torch._foreach_copy_(weights, server)
            local_sgd(model, workload.batches[client], workload.lr, workload.epochs)
            with torch.no_grad():
                torch._foreach_add_(mean, weights, alpha=share)
        server = added_up(mean) if size > 1 else mean
        if gate:
            gate.lap()
    if gate:
        gate.write(dict(zip((name for name, _ in model.named_parameters()), server, strict=True)))


def added_up(shares: list[Tensor]) -> list[Tensor]:
    flat = torch.cat([share.flatten() for share in shares])
    dist.all_reduce(flat)
    pieces = flat.split([share.numel() for share in shares])
    return [piece.view_as(share) for piece, share in zip(pieces, shares, strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    size = arguments.processes
    if size == 1:
        train(0, 1, arguments.folder, arguments.out)
    else:
        multiprocessing.spawn(train, (size, arguments.folder, arguments.out), nprocs=size)
