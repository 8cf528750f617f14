"""The tables and the figure of Federated Pruning on LibriSpeech: all rows prune the same trained model.

R. Lin et al., Interspeech 2022, Tables 2 (scores), 3 (unified or adaptive), 4 (with or without refinement)
and Figure 4 (patterns, sparsities). A small Conformer with CTC on the frozen encoder of Moonshine tiny (an
ONNX file) is trained on all speakers of the pool. They are also the clients: the paper prunes on the training
data. `dense` has the same rounds without pruning; the other rows are compared with it. `small` is a dense
model with as many parameters as sparsity 0.5 leaves, trained centrally and then federated, for as many
rounds. Two methods are not in the paper: `aligned` is `weight` with units in multiples of 16, which
processors compute faster; `growth` is `adaptive` by how much the weights of a matrix grew, not by how large
they are.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.algorithms.fedavg import hierarchical
from antiphon.algorithms.pruning import FederatedPruning
from antiphon.algorithms.pruning_scores import Adaptive, AdaptiveGrowth, ByMomentum, ByProduct
from antiphon.algorithms.pruning_slices import HalfColumn, HalfRow, WholeRow
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.recipes.single_algorithm import ENCODER_LOCAL, central, encoder_experiment
from antiphon.server.optimizers import Adam
from antiphon.server.schedules import Cosine

ROUNDS, FINE_TUNE_FROM, EVERY = 60, 30, 5
SPARSITIES = (0.1, 0.2, 0.3, 0.4, 0.5)
SMALL = CtcConfig(ConformerConfig(dim=176))  # 1.50 M parameters; at sparsity 0.5, of 3.12 M 1.54 are left


def pruning_librispeech() -> Experiment:
    """Federated Pruning (2022), Tables 2 to 4, Figure 4: scores, layers, refinement, patterns, sparsities."""
    server = Adam(lr=5e-3, epsilon=1e-5)
    inner = replace(hierarchical(ENCODER_LOCAL, server), server_schedule=Cosine(ROUNDS, final=0.02, warmup=3))
    usual = FederatedPruning(inner, mask_every=EVERY, fine_tune_from=FINE_TUNE_FROM)
    methods = {
        "weight": usual,
        "momentum": replace(usual, score=ByMomentum()),
        "product": replace(usual, score=ByProduct()),
        "adaptive": replace(usual, allocation=Adaptive()),
        "growth": replace(usual, allocation=AdaptiveGrowth()),
        "aligned": replace(usual, multiple=16),
        "unrefined": replace(usual, refine=False),
        "half-column": replace(usual, pattern=HalfColumn()),
        "row": replace(usual, pattern=WholeRow()),
        "half-row": replace(usual, pattern=HalfRow()),
    }
    rounds = Rounds(total=ROUNDS, cohort=10, valid_every=5, save_every=10)
    dense = Run(inner, "both", start_run="pretrained", rounds=rounds)
    pruned = {
        f"{name}-{sparsity}": replace(dense, algorithm=replace(method, sparsity=sparsity))
        for name, method in methods.items()
        for sparsity in SPARSITIES
    }
    return encoder_experiment(
        "pruning-librispeech",
        {
            "pretrained": central("both", rounds=80),
            "dense": dense,
            "small-pretrained": replace(central("both", rounds=80), model=SMALL),
            "small": replace(dense, start_run="small-pretrained", model=SMALL),
            **pruned,
        },
    )
