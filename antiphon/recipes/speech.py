"""One recogniser of each kind, trained centrally on all pool speakers of a corpus, with subwords.

These are the models of the tables in docs/decoding.md. The front end is a frozen encoder (an ONNX file);
`--set frontend=filterbank` needs none. Any corpus can be used: tokens come from its own text.
"""

from __future__ import annotations

from antiphon.algorithms.central import Central
from antiphon.data.frontends import OnnxEncoder
from antiphon.data.partition import Iid
from antiphon.data.tokens import UnigramConfig
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.las import LasConfig
from antiphon.models.model import ModelConfig
from antiphon.models.transducer import TransducerConfig
from antiphon.recipes.single_algorithm import ENCODER_MASKS
from antiphon.server.schedules import Cosine
from antiphon.tasks.local_training import LocalTraining


def _central(
    name: str, model: ModelConfig, num_tokens: int, rounds: int = 100, batch_seconds: float = 240.0
) -> Experiment:
    """Return an experiment with rounds of 50 steps; the result is the best round on the held-out speakers."""
    training = LocalTraining(lr=1e-3, steps=50, batch_seconds=batch_seconds)
    algorithm = Central(training, schedule=Cosine(rounds, final=0.02, warmup=4))
    run = Run(algorithm, "both", Iid(1), "", Rounds(total=rounds, cohort=1, valid_every=5, save_every=5))
    return Experiment(
        name,
        frontend=OnnxEncoder("encoder_model.onnx"),
        tokens=UnigramConfig(num_tokens),
        model=model,
        augment=ENCODER_MASKS,
        speakers=Speakers(seed_fraction=1.0),
        runs={"central": run},
    )


def speech_ctc() -> Experiment:
    """Central training of a Conformer with CTC over subwords."""
    model = CtcConfig(ConformerConfig(dim=512, num_layers=3, dropout=0.3))
    return _central("speech-ctc", model, num_tokens=128, rounds=150)


def speech_las() -> Experiment:
    """Central training of listen, attend and spell over subwords, with CTC beside it."""
    encoder = BlstmConfig(dim=256, num_layers=3, stack=2, dropout=0.3)
    model = LasConfig(encoder, dropout=0.3, label_smoothing=0.1, ctc_weight=0.3)
    # The decoder goes token by token, so a large batch takes hardly longer than a small one.
    return _central("speech-las", model, num_tokens=256, rounds=40, batch_seconds=480.0)


def speech_transducer() -> Experiment:
    """Central training of a Conformer-Transducer over subwords."""
    model = TransducerConfig(ConformerConfig(dim=384, num_layers=3, stack=2, dropout=0.3), dropout=0.3)
    return _central("speech-transducer", model, num_tokens=256)
