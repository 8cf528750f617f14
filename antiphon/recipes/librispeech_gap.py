"""The gap table: central training improves a seed model; how much of this does federated training reach?

The frozen encoder is Moonshine tiny (an ONNX file); a small Conformer is trained on it with CTC. Half of the
pool's speakers are the server's, for the seed model; the other half are clients.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.algorithms.fedavg import FedAvg, dga, fedavg, hierarchical
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run
from antiphon.recipes.single_algorithm import central, encoder_experiment
from antiphon.server.optimizers import Adam
from antiphon.server.schedules import Cosine
from antiphon.tasks.local_training import LocalTraining

ROUNDS = 90
LOCAL = LocalTraining(lr=0.5, epochs=2, batch_seconds=60.0)
SERVER = Adam(lr=5e-3, epsilon=1e-5)
# Adam's first steps have full size however small the update is: without warm-up they undo the seed model.
SCHEDULE = Cosine(ROUNDS, final=0.02, warmup=5)
REHEARSAL = LocalTraining(lr=0.5, steps=50, batch_seconds=60.0)
REHEARSAL_SCHEDULE = Cosine(ROUNDS, final=0.05)


def librispeech() -> Experiment:
    """Seed, central, FedAvg, hierarchical, DGA, rehearsal; speakers against i.i.d. parts; frozen encoder."""
    rounds = Rounds(total=ROUNDS, cohort=10, valid_every=5, save_every=5)

    def annealed(algorithm: FedAvg) -> FedAvg:
        return replace(algorithm, server_schedule=SCHEDULE)

    averaged = replace(fedavg(LOCAL), client_schedule=Cosine(ROUNDS, final=0.05))
    softmax = annealed(dga(LOCAL, 1.0, SERVER))
    rehearsed = Rehearsed(softmax, REHEARSAL, schedule=REHEARSAL_SCHEDULE)
    return encoder_experiment(
        "librispeech",
        {
            "seed": central("seed", rounds=40),
            "central": central("both", rounds=80),
            "central-from-seed": central("both", rounds=60, start_run="seed"),
            "central-clients": central("federated", rounds=40, start_run="seed"),
            "fedavg": Run(averaged, rounds=rounds),
            "hierarchical": Run(annealed(hierarchical(LOCAL, SERVER)), rounds=rounds),
            "hierarchical-iid": Run(annealed(hierarchical(LOCAL, SERVER)), clients=Iid(25), rounds=rounds),
            "dga": Run(softmax, rounds=rounds),
            "dga-rehearsal": Run(rehearsed, rounds=rounds),
        },
    )
