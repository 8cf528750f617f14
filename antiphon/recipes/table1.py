"""Table 1 of Dynamic Gradient Aggregation on real speakers: the rounds that each row needs, and its WER.

Dimitriadis et al., arXiv:2106.07578, 2021, §4.1: seed, central and federated rows on LibriSpeech, 800 / 384 /
224 / 144 rounds for FedAvg / hierarchical / softmax / RL. Rows from other papers are added.

| paper                       | run                                                                    |
| --------------------------- | ---------------------------------------------------------------------- |
| seed, 1st half              | `seed`: 25 of the pool's speakers, trained centrally                   |
| offline (lower bound)       | `central-offline`: central training on all 50 speakers, without the seed |
| online                      | `central-online`: central training on the clients' speech, from the seed |
| FedAvg                      | `fedavg`                                                               |
| (BMUF of the 2020 paper)    | `bmuf`: seven random parts of whole speakers, block momentum           |
| hier. optim. (i.i.d.)       | `hierarchical-iid`: seven random parts of whole speakers               |
| hier. optim. (non-i.i.d.)   | `hierarchical`: a client is a speaker; `hierarchical-sessions`: a session |
| + softmax, β                | `softmax-0.3`, `softmax-1`, `softmax-3`                                |
| + RL                        | `rl`, with the weights of `softmax-1` at first; `rl-cohort`: the same with |
|                             | the paper's network, for a whole cohort                                |
| appendix A                  | `norm`                                                                 |
| (Pillutla, Li, Brock)       | `median`, `fedprox`, `layer-clip`: each as hierarchical with one change |

In every row a client takes five steps of 60 s of speech in a round, which is about all speech of a speaker.
Learning rates are constant after a warm-up: with a rate that falls until the last round, every run would be
best at its end. Validation is every other round, so rounds are counted in steps of two. FedAvg has 110 rounds
and the others 50: enough to see whether it needs up to 2.2 times as many.

Tuning. All rows built on `hierarchical` have its local training and its server rate, so that a row differs in
one setting. Each row has three trials (`TRIALS`) of this setting on one seed, compared on the held-out
speakers. Trials are run for each condition, and `benchmarks/table1.py --choose` prints the best ones of each
as settings of `table1`. `Trials.chosen` is what a row has without such settings. All three trials of softmax
are rows. `table1-trials` runs all trials.

`central-online` has 2,000 steps of a minute, as the federated rows have 2,500: the paper trains its online
model on the second half of the data for as long as it needs.

`corruption` makes bad clients: docs/examples/table1-babble.yaml and table1-wrong-texts.yaml.

Deviation: corruption is by speaker, also if clients are not speakers. All of a session of a corrupted speaker
is corrupted. Parts are of whole speakers (FTL 2020, §4: "random, with no overlapping speakers"), so their
shares of corrupted speech differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from antiphon import config
from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.fedavg import bmuf, fedavg, hierarchical
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.core import Algorithm
from antiphon.data.partition import BySession, BySpeaker, IidSpeakers, Partition
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run
from antiphon.recipes.single_algorithm import ENCODER_LOCAL, central, encoder_experiment
from antiphon.server.clipping import ClipLayersRelative
from antiphon.server.optimizers import Adam
from antiphon.server.schedules import Linear
from antiphon.server.weighting import ByNorm, SoftmaxLoss

ROUNDS, FEDAVG_ROUNDS, PARTS = 50, 110, 7
SERVER = Adam(lr=5e-4, epsilon=1e-5)
# Adam's first steps have full size however small the update is: without warm-up they undo the seed model.
PLAIN = replace(hierarchical(ENCODER_LOCAL, SERVER), server_schedule=Linear(ROUNDS, final=1.0, warmup=5))


def _federated(algorithm: Algorithm, clients: Partition = BySpeaker(), total: int = ROUNDS) -> Run:
    cohort = clients.parts if isinstance(clients, IidSpeakers) else 10
    rounds = Rounds(total=total, cohort=cohort, valid_every=2, save_every=10)
    return Run(algorithm, clients=clients, rounds=rounds)


@dataclass(frozen=True)
class Trials:
    """Runs of a row that differ in one setting: `chosen` is the best of its `values`."""

    setting: str
    run: Run
    values: tuple[float, ...]
    chosen: float

    @property
    def runs(self) -> dict[float, Run]:
        return {value: config.override(self.run, [f"{self.setting}={value}"]) for value in self.values}


SERVER_LR = "algorithm.server.lr"
ONLINE = central("federated", rounds=40, start_run="seed")
SOFTMAX = replace(PLAIN, weighting=SoftmaxLoss(1.0))
BY_NORM, CLIPPED = replace(PLAIN, weighting=ByNorm()), replace(PLAIN, clipping=ClipLayersRelative())
BMUF = _federated(bmuf(ENCODER_LOCAL), IidSpeakers(PARTS))
FEDAVG = _federated(fedavg(ENCODER_LOCAL), total=FEDAVG_ROUNDS)
# The same number of trials for every row.
TRIALS = {
    "central-online": Trials("algorithm.local.lr", ONLINE, (3e-4, 1e-3, 3e-3), 1e-3),
    "fedavg": Trials("algorithm.local.lr", FEDAVG, (0.2, 0.5, 1.0), 0.5),
    "bmuf": Trials("algorithm.server.momentum", BMUF, (0.2, 0.5, 0.8), 0.2),
    "hierarchical": Trials(SERVER_LR, _federated(PLAIN), (1.5e-4, 5e-4, 1.5e-3), 5e-4),
    "softmax": Trials("algorithm.weighting.beta", _federated(SOFTMAX), (0.3, 1.0, 3.0), 1.0),
    "norm": Trials("algorithm.weighting.power", _federated(BY_NORM), (0.5, 1.0, 2.0), 0.5),
    "rl": Trials("algorithm.exaggeration", _federated(DgaRl(SOFTMAX)), (1.0, 10.0, 30.0), 30.0),
    "median": Trials("algorithm.iterations", _federated(GeometricMedian(PLAIN)), (1, 3, 8), 1),
    "fedprox": Trials("algorithm.local.proximal", _federated(PLAIN), (0.01, 0.1, 1.0), 0.01),
    "layer-clip": Trials("algorithm.clipping.limit", _federated(CLIPPED), (0.005, 0.02, 0.1), 0.02),
}


def _experiment(name: str, runs: dict[str, Run]) -> Experiment:
    return encoder_experiment(name, {"seed": central("seed", rounds=40), **runs})


def trial_name(row: str, value: float) -> str:
    """Return the name of a trial in `table1-trials`."""
    return f"{row}-{value:g}"


def _trials_of(row: str) -> dict[str, Run]:
    return {trial_name(row, value): run for value, run in TRIALS[row].runs.items()}


def table1() -> Experiment:
    """Table 1 of DGA (2021): rounds needed and WER of 16 algorithms, with clean or with bad clients."""
    row = {name: trials.runs[trials.chosen] for name, trials in TRIALS.items()}
    return _experiment(
        "table1",
        {
            "central-offline": central("both", rounds=80),
            "central-online": row["central-online"],
            "fedavg": row["fedavg"],
            "bmuf": row["bmuf"],
            "hierarchical-iid": _federated(PLAIN, IidSpeakers(PARTS)),
            "hierarchical-sessions": _federated(PLAIN, BySession()),
            "hierarchical": row["hierarchical"],
            **_trials_of("softmax"),
            "rl-cohort": config.override(row["rl"], ["algorithm.policy=per_cohort"]),
            **{name: row[name] for name in ("rl", "norm", "median", "fedprox", "layer-clip")},
        },
    )


def table1_trials() -> Experiment:
    """Three trials of one setting for each row of table1."""
    runs = {name: run for row in TRIALS for name, run in _trials_of(row).items()}
    return _experiment("table1-trials", runs)
