"""Table 1 of Dynamic Gradient Aggregation on real speakers: which row needs how many rounds, at what WER?

Dimitriadis et al., arXiv:2106.07578, 2021, §4.1: seed, central and federated rows on LibriSpeech, 800 / 384 /
224 / 144 rounds for FedAvg / hierarchical / softmax / RL. Here further rows of others who want the same.

| paper                       | run                                                                    |
| --------------------------- | ---------------------------------------------------------------------- |
| seed, 1st half              | `seed`: 25 of the pool's speakers, trained in one place                |
| offline (lower bound)       | `central-offline`: all 50 speakers in one place, from nothing          |
| online                      | `central-online`: one pass over the clients' speech, from the seed     |
| FedAvg                      | `fedavg`                                                               |
| (BMUF of the 2020 paper)    | `bmuf`: seven i.i.d. parts, block momentum                             |
| hier. optim. (i.i.d.)       | `hierarchical-iid`: seven i.i.d. parts                                 |
| hier. optim. (non-i.i.d.)   | `hierarchical`: a client is a speaker; `hierarchical-sessions`: a session |
| + softmax, β                | `softmax-0.3`, `softmax-1`, `softmax-3`                                |
| + RL                        | `rl`, beginning from `softmax-1`                                       |
| appendix A                  | `norm`                                                                 |
| (Pillutla, Li, Brock)       | `median`, `fedprox`, `layer-clip`: each hierarchical but for one thing |

A client of any row takes five steps of 60 s of speech in a round, which is about what a speaker has. Rates
are constant after a warm-up: a rate that falls until the last round makes every run best at its end,
whatever it needed. Validation is every other round, which is how finely rounds are told apart. FedAvg may
take 110 rounds and others 50, so that it can be seen to need 2.1 times as many.

Tuning. Local training and the server's rate are those of `hierarchical`, for all rows built on it, so that a
row differs from it in one thing. Each row has three trials (`TRIALS`) of the one setting that is its own, on
one seed, judged by the held-out speakers: the same budget for all. The best of three is the row of `table1`,
the others are a `--set` away (`choice` in benchmarks/table1.py); of softmax all three are rows.
`table1-trials` runs all trials.

Conditions are a matter of `corruption`: docs/examples/table1-babble.yaml and table1-wrong-texts.yaml.

Deviation: corrupted clients are speakers, whatever a run's clients are. A session of a corrupted speaker is
corrupted whole; of an i.i.d. part it is the same share everywhere, and no weighting of clients can help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from antiphon.algorithms.central import Central
from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.fedavg import FedAvg, bmuf, fedavg, hierarchical
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.data.partition import BySession, BySpeaker, Iid
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run
from antiphon.recipes.single_algorithm import ENCODER_LOCAL, central, encoder_experiment
from antiphon.server.clipping import ClipLayersRelative
from antiphon.server.optimizers import Adam
from antiphon.server.schedules import Linear
from antiphon.server.weighting import ByNorm, SoftmaxLoss
from antiphon.tasks.local_training import LocalTraining

ROUNDS, FEDAVG_ROUNDS, PARTS = 50, 110, 7
SERVER = Adam(lr=5e-4, epsilon=1e-5)
# Adam's first steps are full steps whatever the update's size: without warm-up they undo the seed.
PLAIN = replace(hierarchical(ENCODER_LOCAL, SERVER), server_schedule=Linear(ROUNDS, final=1.0, warmup=5))


def _online(lr: float) -> Run:
    algorithm = Central(LocalTraining(lr=lr, epochs=1))
    return Run(algorithm, "federated", Iid(1), rounds=Rounds(total=1, cohort=1))


def _federated(
    algorithm: FedAvg | DgaRl | GeometricMedian,
    clients: BySpeaker | BySession | Iid = BySpeaker(),
    total: int = ROUNDS,
) -> Run:
    cohort = clients.parts if isinstance(clients, Iid) else 10
    rounds = Rounds(total=total, cohort=cohort, valid_every=2, save_every=10)
    return Run(algorithm, clients=clients, rounds=rounds)


def _softmax(beta: float) -> FedAvg:
    return replace(PLAIN, weighting=SoftmaxLoss(beta))


@dataclass(frozen=True)
class Trials:
    """Runs of a row that differ in one setting, by its value; and the value that was best."""

    setting: str
    runs: Mapping[float, Run]
    chosen: float


SERVER_LR = "algorithm.server.lr"
# Three of each row: as many for every one.
TRIALS = {
    "central-online": Trials("algorithm.local.lr", {lr: _online(lr) for lr in (1e-4, 3e-4, 1e-3)}, 1e-4),
    "fedavg": Trials(
        "algorithm.local.lr",
        {
            lr: _federated(fedavg(replace(ENCODER_LOCAL, lr=lr)), total=FEDAVG_ROUNDS)
            for lr in (0.2, 0.5, 1.0)
        },
        chosen=0.5,
    ),
    "bmuf": Trials(
        "algorithm.server.momentum",
        {momentum: _federated(bmuf(ENCODER_LOCAL, momentum), Iid(PARTS)) for momentum in (0.2, 0.5, 0.8)},
        chosen=0.2,
    ),
    "hierarchical": Trials(
        SERVER_LR,
        {lr: _federated(replace(PLAIN, server=replace(SERVER, lr=lr))) for lr in (1.5e-4, 5e-4, 1.5e-3)},
        chosen=5e-4,
    ),
    "softmax": Trials(
        "algorithm.weighting.beta",
        {beta: _federated(_softmax(beta)) for beta in (0.3, 1.0, 3.0)},
        chosen=1.0,
    ),
    "norm": Trials(
        "algorithm.weighting.power",
        {power: _federated(replace(PLAIN, weighting=ByNorm(power))) for power in (0.5, 1.0, 2.0)},
        chosen=0.5,
    ),
    "rl": Trials(
        "algorithm.exaggeration",
        {apart: _federated(DgaRl(_softmax(1.0), exaggeration=apart)) for apart in (1.0, 10.0, 30.0)},
        chosen=30.0,
    ),
    "median": Trials(
        "algorithm.iterations",
        {number: _federated(GeometricMedian(PLAIN, number)) for number in (1, 3, 8)},
        chosen=1,
    ),
    "fedprox": Trials(
        "algorithm.local.proximal",
        {
            pull: _federated(replace(PLAIN, local=replace(ENCODER_LOCAL, proximal=pull)))
            for pull in (0.01, 0.1, 1.0)
        },
        chosen=0.01,
    ),
    "layer-clip": Trials(
        "algorithm.clipping.limit",
        {
            limit: _federated(replace(PLAIN, clipping=ClipLayersRelative(limit)))
            for limit in (0.005, 0.02, 0.1)
        },
        chosen=0.02,
    ),
}


def _experiment(name: str, runs: dict[str, Run]) -> Experiment:
    return encoder_experiment(name, {"seed": central("seed", rounds=40), **runs})


def trial_name(row: str, value: float) -> str:
    """As in `table1-trials`."""
    return f"{row}-{value:g}"


def _trials_of(row: str) -> dict[str, Run]:
    return {trial_name(row, value): run for value, run in TRIALS[row].runs.items()}


def table1() -> Experiment:
    """Table 1 of DGA (2021): rounds needed and WER of 15 ways to train, clean or with bad clients."""
    row = {name: trials.runs[trials.chosen] for name, trials in TRIALS.items()}
    return _experiment(
        "table1",
        {
            "central-offline": central("both", rounds=80),
            "central-online": row["central-online"],
            "fedavg": row["fedavg"],
            "bmuf": row["bmuf"],
            "hierarchical-iid": _federated(PLAIN, Iid(PARTS)),
            "hierarchical-sessions": _federated(PLAIN, BySession()),
            "hierarchical": row["hierarchical"],
            **_trials_of("softmax"),
            **{name: row[name] for name in ("rl", "norm", "median", "fedprox", "layer-clip")},
        },
    )


def table1_trials() -> Experiment:
    """Three trials of the setting that matters for each row of table1: the same budget for all."""
    return _experiment(
        "table1-trials", {name: run for row in TRIALS for name, run in _trials_of(row).items()}
    )
