"""How adaptive sparsity divides a Conformer, with matrices as layers and with blocks: untrained and trained.

Untrained models have six blocks, as in docs/examples/pruned-blocks.yaml, one model for each of three seeds.
Trained models are the folders of finished runs. For each model and both kinds of layers, the table has the
share of weights that eq. 1 keeps at sparsity 0.5: the lowest and the highest block, and the same by kind of
matrix.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from common import argument_parser, print_table, write_result
from torch import nn

from antiphon.algorithms.pruning import FederatedPruning
from antiphon.algorithms.pruning_scores import Adaptive, mean_sizes
from antiphon.algorithms.pruning_slices import Slices
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.reduced import ReducedConfig, structure_of
from antiphon.recognizer import Recognizer
from antiphon.report.run_folder import RunFolder

SPARSITY, SEEDS = 0.5, (0, 1, 2)
INPUT_DIM, NUM_TOKENS = 288, 30
LAYERS = {"matrix": Adaptive(), "block": Adaptive(by_block=True)}


def untrained(seed: int, num_layers: int = 6) -> nn.Module:
    torch.manual_seed(seed)
    return CtcConfig(ConformerConfig(dim=64, num_layers=num_layers)).build(INPUT_DIM, NUM_TOKENS)


def describe(model: nn.Module) -> dict[str, Any]:
    """Return mean|w| by block, and for each kind of layer the densities by block and by kind of matrix."""
    slices = FederatedPruning(structure=structure_of(model)).slices
    params = {name: p.detach() for name, p in model.named_parameters()}
    found: dict[str, Any] = {"mean_size": by(slices, mean_sizes(slices, params), (s.block for s in slices))}
    for kind, allocation in LAYERS.items():
        densities = allocation.densities(slices, params, SPARSITY)
        found[kind] = {
            "blocks": by(slices, densities, (s.block for s in slices)),
            "matrices": by(slices, densities, (s.layer.removeprefix(s.block + ".") for s in slices)),
        }
    return found


def finished(path: Path) -> dict[str, Any]:
    """Return the seed and the test WER of a run; describe its model if it was not pruned."""
    run, recognizer = RunFolder.load(path), Recognizer.load(path)
    scores = run.evaluations["test"]["best"].overall.words
    about = {"run_seed": run.about["seed"], "wer": scores.rate, "parameters": run.about["num_parameters"]}
    is_pruned = isinstance(recognizer.blueprint.model, ReducedConfig)
    return about if is_pruned else {**about, **describe(recognizer.model)}


def by(slices: Sequence[Slices], values: Sequence[float], names: Iterable[str]) -> dict[str, float]:
    """Return the mean value of the weights of each name."""
    groups: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for group, value, name in zip(slices, values, names, strict=True):
        groups[name].append((group.num_weights, value))
    return {name: sum(n * v for n, v in rows) / sum(n for n, _ in rows) for name, rows in groups.items()}


def cells(found: Mapping[str, Any], kind: str) -> list[str]:
    parts = [found[kind][part] for part in ("blocks", "matrices")]
    return [f"{min(part.values()):.2f} … {max(part.values()):.2f}" for part in parts]


def main() -> None:
    parser = argument_parser(__doc__, "pruning_layers")
    parser.add_argument("runs", nargs="*", type=Path, help="folders of finished runs")
    arguments = parser.parse_args()
    models = {f"untrained, seed {seed}": describe(untrained(seed)) for seed in SEEDS}
    models |= {path.name: finished(path) for path in arguments.runs}
    header = ["model", "a layer is", "kept of the blocks", "kept by kind of matrix"]
    whole = {name: found for name, found in models.items() if "mean_size" in found}
    print_table(header, [[name, kind, *cells(whole[name], kind)] for name in whole for kind in LAYERS])
    runs = [[name, f"{100 * found['wer']:.1f}"] for name, found in models.items() if "wer" in found]
    print_table(["run", "test WER %"], runs)
    result = {"device": "cpu", "seeds": list(SEEDS), "sparsity": SPARSITY, "models": models}
    write_result(arguments, result, *(run.name for run in arguments.runs))


if __name__ == "__main__":
    main()
