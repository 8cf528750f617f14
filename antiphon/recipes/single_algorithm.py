"""One algorithm each, after a seed model: starting points for a corpus of your own."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.algorithms.central import Central
from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.ditto import Ditto
from antiphon.algorithms.fedavg import FedAvg, bmuf, dga, fedavg, fedsgd, hierarchical
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.algorithms.personal_layers import PersonalLayers
from antiphon.algorithms.pruning import FederatedPruning
from antiphon.algorithms.q_fedavg import QFedAvg
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.algorithms.scaffold import Scaffold
from antiphon.data.frontends import OnnxEncoder
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run
from antiphon.models.ctc import CtcConfig
from antiphon.models.noise import SpecAugment
from antiphon.server.clipping import ClipLayersRelative
from antiphon.server.optimizers import Adam
from antiphon.server.schedules import Cosine
from antiphon.server.weighting import ByNorm, Uniform
from antiphon.tasks.local_training import LocalTraining

LOCAL = LocalTraining(lr=0.05, epochs=1, batch_seconds=60.0)
# Entries of updates are about 1e-4 here: the usual epsilon of 1e-3 would turn Adam into slow SGD.
SERVER = Adam(lr=3e-3, epsilon=1e-5)
# On a frozen encoder: five steps of a minute, about all speech of a LibriSpeech speaker here.
ENCODER_LOCAL = LocalTraining(lr=0.5, steps=5, batch_seconds=60.0)
# On a frozen encoder with 41.7 frames per second: a time mask hides up to 0.3 s.
ENCODER_MASKS = SpecAugment(num_time_masks=4, time_width=12, num_frequency_masks=2, frequency_width=40)


def central(data: str, rounds: int = 40, steps: int = 50, lr: float = 1e-3, start_run: str = "") -> Run:
    """Return central training on some of the speakers: seed models and reference rows."""
    algorithm = Central(LocalTraining(lr=lr, steps=steps), schedule=Cosine(rounds, final=0.02, warmup=2))
    return Run(algorithm, data, Iid(1), start_run, Rounds(total=rounds, cohort=1, valid_every=5))


def encoder_experiment(name: str, runs: dict[str, Run]) -> Experiment:
    """Return runs of a small Conformer with CTC on a frozen encoder (an ONNX file)."""
    frontend = OnnxEncoder("encoder_model.onnx")
    return Experiment(name, frontend=frontend, model=CtcConfig(), augment=ENCODER_MASKS, runs=runs)


# Name of a recipe -> what it is, and the run that follows its seed model.
AFTER_SEED: dict[str, tuple[str, Run]] = {
    "central": (
        "Central training on the speech of all speakers: the reference, not federated.",
        central("both"),
    ),
    "fedsgd": (
        "FedSGD (McMahan 2017): one step on all speech of a client; the sum is a central gradient.",
        Run(fedsgd(SERVER), rounds=Rounds(total=50, cohort=10)),
    ),
    "fedavg": (
        "FedAvg (McMahan 2017): local SGD, models averaged by number of utterances.",
        Run(fedavg(LOCAL)),
    ),
    "hierarchical": (
        "Hierarchical optimisation (FTL 2020): SGD on the clients, Adam on the server.",
        Run(hierarchical(LOCAL, SERVER)),
    ),
    "bmuf": (
        "BMUF (Chen and Huo 2016): seven fixed i.i.d. parts, block momentum.",
        Run(bmuf(LOCAL, 0.8), clients=Iid(7), rounds=Rounds(total=20, cohort=7)),
    ),
    "dga": (
        "Dynamic Gradient Aggregation (2021): clients weighted by a softmax of their negative losses.",
        Run(dga(LOCAL, server=SERVER)),
    ),
    "dga-rl": (
        "DGA with learnt weights (2021): a network that is rewarded when its weights beat the softmax's.",
        Run(DgaRl(dga(LOCAL, beta=1.0, server=SERVER))),
    ),
    "norm": (
        "Weighting by update norm (DGA, appendix A): large updates get small weights.",
        Run(FedAvg(LOCAL, weighting=ByNorm(), server=SERVER)),
    ),
    "median": (
        "Geometric median of updates (Pillutla et al. 2022): a few bad clients hardly change it.",
        Run(GeometricMedian(hierarchical(LOCAL, SERVER))),
    ),
    "layer-clip": (
        "Hierarchical optimisation that clips the aggregate layer by layer, relative to the layer's norm.",
        Run(FedAvg(LOCAL, weighting=Uniform(), server=SERVER, clipping=ClipLayersRelative())),
    ),
    "rehearsal": (
        "DGA softmax with server rehearsal (DGA eq. 5): some steps on the server's own speech each round.",
        Run(Rehearsed(dga(LOCAL, server=SERVER), LocalTraining(steps=10))),
    ),
    "subspace": (
        "Subspace training (DGA §4): only the encoder is trained, and only the encoder is sent.",
        Run(FedAvg(LOCAL, server=SERVER, trainable=("encoder.*",))),
    ),
    "scaffold": (
        "SCAFFOLD (Karimireddy et al. 2020): control variates correct the drift of clients.",
        Run(Scaffold(LOCAL)),
    ),
    "q-fedavg": (
        "q-FedAvg (Li et al. 2020): clients with a large loss get large weights.",
        Run(QFedAvg(q=1.0, local=LOCAL)),
    ),
    "personal-layers": (
        "Personal layers (Arivazhagan et al. 2019): every client keeps its own output layer.",
        Run(PersonalLayers(hierarchical(LOCAL, SERVER), layers=("output.*",)), held_out=0.2),
    ),
    "ditto": (
        "Ditto (Li et al. 2021): every client also trains its own model, which stays near the global one.",
        Run(Ditto(hierarchical(LOCAL, SERVER), LOCAL), held_out=0.2),
    ),
    "pruning": (
        "Federated Pruning (2022): clients train a model of half the size, which is the result.",
        Run(
            FederatedPruning(hierarchical(LOCAL, SERVER), mask_every=5, fine_tune_from=20),
            rounds=Rounds(total=40),
        ),
    ),
}


def after_seed(name: str) -> Callable[[], Experiment]:
    """Return the recipe of this name: a seed model, then the run."""
    text, run = AFTER_SEED[name]

    def make() -> Experiment:
        return Experiment(name, runs={"seed": central("seed"), name: run})

    make.__doc__ = text
    return make
