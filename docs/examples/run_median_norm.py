"""FedAvg with and without the clipping of `median_norm.py`, on the demo's corpus, where rounds are rough.

Three clients a round, and no clipping on the clients themselves.
"""

from __future__ import annotations

from dataclasses import replace

from median_norm import MedianNorm

import antiphon
from antiphon.algorithms.fedavg import fedavg
from antiphon.engine import Rounds
from antiphon.experiment.settings import Run
from antiphon.scoring.error_rate import Errors
from antiphon.tasks.local_training import LocalTraining

local = LocalTraining(lr=0.5, batch_seconds=16.0, clip_norm=0.0)
rounds = Rounds(total=24, cohort=3, valid_every=3)
small = antiphon.recipe("docs/examples/small.yaml")
runs = {
    "seed": small.runs["seed"],
    "fedavg": Run(fedavg(local), rounds=rounds),
    "median-norm": Run(MedianNorm(local), rounds=rounds),
}
scores = antiphon.run(replace(small, runs=runs), data="demo/corpus", out="median", resume=True)
for name, score in scores.items():
    print(f"{name:<12} WER {100 * Errors(**score['words']).rate:.1f} %")
