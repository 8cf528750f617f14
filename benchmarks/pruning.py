"""What pruning saves on a client: bytes, memory, time of a step, real-time factor; dense against pruned.

A client of a few utterances of noise trains and recognises with a Conformer-CTC, whole and at sparsity 0.5
(whole columns, the default). Each measurement is a process of its own, dense and pruned in turn. Memory on a
CPU is the peak of the process over what it held before the model was built; on a GPU, that of torch's
allocator. Time on a CPU is the processor's, one thread: others may use the machine; on a GPU, the clock's.
A GPU waits for launches as long with a small model as with a large one unless batches are large
(`--utterances`). The pruned model is built from its own configuration, as on a device: the large one is
never there.

  small       2 layers of 256: the model of the recipes
  medium      8 layers of 256
  published   17 layers of 512, the paper's encoder
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    TOKENS,
    argument_parser,
    in_fresh_process,
    make_store,
    memory_mib,
    print_table,
    write_result,
)

from antiphon.algorithms.pruning import FederatedPruning
from antiphon.clients.client import Client, ClientRuntime
from antiphon.clients.train import train
from antiphon.core import Task, size_in_bytes
from antiphon.data.store import FeatureStore
from antiphon.decoding.search import recognise
from antiphon.experiment.preparation import choose_device, device_name
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.reduced import ReducedConfig, structure_of
from antiphon.tasks.local_training import LocalTraining

SPARSITY = 0.5
ENCODERS = {
    "quick": ConformerConfig(dim=32, num_layers=2),
    "small": ConformerConfig(),
    "medium": ConformerConfig(num_layers=8),
    "published": ConformerConfig(dim=512, num_layers=17, num_heads=8, kernel_size=31),
}
SECONDS = 2.5  # of a batch, for each utterance of the client: about two steps


def local_training(store: FeatureStore) -> LocalTraining:
    return LocalTraining(lr=0.01, epochs=1, batch_seconds=SECONDS * len(store))


def pruned(full: CtcConfig, input_dim: int) -> ReducedConfig:
    """Which units go depends on weights, how many does not: here, the last of each matrix."""
    with torch.device("meta"):
        model = full.build(input_dim, TOKENS.size)
    params = {name: torch.zeros(()).expand(p.shape) for name, p in model.named_parameters()}
    pruning = FederatedPruning(sparsity=SPARSITY, structure=structure_of(model))
    return ReducedConfig(full, pruning.keep(params, SPARSITY))


def client_of(store: FeatureStore, way: str, encoder: str, device: torch.device) -> tuple[Client, int]:
    """A client with its model, and the bytes of text that say what is kept of it."""
    full = CtcConfig(ENCODERS[encoder])
    config = pruned(full, store.dim) if way == "pruned" else full
    told = len(config.submodel.write()) if isinstance(config, ReducedConfig) else 0
    torch.manual_seed(0)
    model = config.build(store.dim, TOKENS.size).to(device)
    base = {name: p.detach() for name, p in model.named_parameters()}  # its own memory: nothing is held twice
    return Client(
        "client", np.arange(len(store)), ClientRuntime(store, TOKENS, model, base, None, device)
    ), told


def measure(way: str, encoder: str, device: torch.device, folder: str, repeats: int) -> dict[str, Any]:
    """One process's figures."""
    store = FeatureStore.open(Path(folder))
    on_gpu = device.type == "cuda"
    warm, _ = client_of(store, way, "quick", device)  # libraries are loaded when they are first used
    settings = {**local_training(store).to_task(), "round": 0, "seed": 1}
    train(Task("train", dict(warm.runtime.base), settings), warm)
    del warm
    before = memory_mib()["anonymous"] + memory_mib()["file"]
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    client, told = client_of(store, way, encoder, device)
    task = Task("train", dict(client.runtime.base), settings)
    clock, seconds = time.perf_counter if on_gpu else time.process_time, []
    for _ in range(repeats + 1):
        start = clock()
        update = train(task, client)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append((clock() - start) / update.reports[0].stats["num_steps"])
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else memory_mib()["peak"] - before
    runtime, rates = client.runtime, []
    for _ in range(repeats + 1):
        start = clock()
        recognise(runtime.model, TOKENS, store, client.indices, device)
        rates.append((clock() - start) / client.seconds)
    return {
        "parameters": sum(t.numel() for t in task.tensors.values()),
        "bytes_down": size_in_bytes(task.tensors) + told,
        "bytes_up": size_in_bytes(update.mean),
        "memory_mib": peak,
        "step_seconds": float(np.median(seconds[1:])),
        "real_time_factor": float(np.median(rates[1:])),
    }


FIGURES = ("parameters", "bytes_down", "bytes_up", "memory_mib", "step_seconds", "real_time_factor")


def main() -> None:
    parser = argument_parser(__doc__, "pruning")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--encoders", nargs="+", default=["small", "medium", "published"])
    parser.add_argument("--turns", type=int, default=3, help="processes for each figure")
    parser.add_argument("--utterances", type=int, default=4, help="of the client; a GPU wants hundreds")
    arguments = parser.parse_args()
    if arguments.case:
        way, encoder, device, folder, repeats = arguments.case
        print(json.dumps(measure(way, encoder, choose_device(device), folder, int(repeats))))
        return
    encoders = ["quick"] if arguments.quick else arguments.encoders
    turns, repeats = (1, 1) if arguments.quick else (arguments.turns, 2)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "corpus", 1, arguments.utterances, (4.0, 8.0), dim=288)
        for encoder in encoders:
            found: dict[str, list[dict[str, Any]]] = {"dense": [], "pruned": []}
            for _ in range(turns):
                for way, figures in found.items():
                    case = [way, encoder, arguments.device, str(store.folder), str(repeats)]
                    figures.append(in_fresh_process(__file__, case))
            medians = {
                way: {name: float(np.median([f[name] for f in figures])) for name in FIGURES}
                for way, figures in found.items()
            }
            ratios = {name: medians["pruned"][name] / medians["dense"][name] for name in FIGURES}
            results[encoder] = {**medians, "ratio": ratios, "all": found}
    rows = [
        [encoder, name, f"{r['dense'][name]:,.4g}", f"{r['pruned'][name]:,.4g}", f"{r['ratio'][name]:.3f}"]
        for encoder, r in results.items()
        for name in FIGURES
    ]
    print_table(["encoder", "figure", "dense", f"pruned, {SPARSITY}", "ratio"], rows)
    name = "cpu, one thread" if arguments.device == "cpu" else device_name(choose_device(arguments.device))
    given = {"--device": arguments.device, "--encoders": " ".join(encoders), "--turns": turns}
    given |= {"--utterances": arguments.utterances}
    chosen = [] if arguments.quick else [f"{option} {value}" for option, value in given.items()]
    write_result(arguments, {"device": name, "sparsity": SPARSITY, "encoders": results}, *chosen)


if __name__ == "__main__":
    main()
