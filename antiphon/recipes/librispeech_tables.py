"""Tables on LibriSpeech: a small Conformer with CTC on the frozen encoder of Moonshine tiny (ONNX)."""

from __future__ import annotations

from dataclasses import replace

from antiphon.algorithms.fedavg import FedAvg, dga, fedavg, hierarchical
from antiphon.algorithms.pruning import FederatedPruning, StepSparsity
from antiphon.algorithms.pruning_scores import Adaptive, AdaptiveGrowth, ByMomentum, ByProduct, ByWeight
from antiphon.algorithms.pruning_slices import HalfColumn, HalfRow, WholeRow
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.algorithms.self_training import CurrentModel, FrozenSeed, MovingAverage, OtherModel, SelfTrained
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.recipes.single_algorithm import ENCODER_LOCAL, central, encoder_experiment
from antiphon.server.optimizers import Adam
from antiphon.server.schedules import Cosine
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.pseudo_labels import Labelling, Ngram, SentenceProbability, TokenProbability

ROUNDS = 90
LOCAL = LocalTraining(lr=0.5, epochs=2, batch_seconds=60.0)
SERVER = Adam(lr=5e-3, epsilon=1e-5)
# Adam's first steps have full size however small the update is: without warm-up they undo the seed model.
SCHEDULE = Cosine(ROUNDS, final=0.02, warmup=5)
REHEARSAL = LocalTraining(lr=0.5, steps=50, batch_seconds=60.0)
REHEARSAL_SCHEDULE = Cosine(ROUNDS, final=0.05)


def librispeech() -> Experiment:
    """Seed, central, FedAvg, hierarchical, DGA, rehearsal; speakers against i.i.d. parts; frozen encoder.

    The gap table: central training improves a seed model; how much of this does federated training reach?
    Half of the pool's speakers are the server's, for the seed model; the other half are clients.
    """
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


def self_training() -> Experiment:
    """Clients without transcripts (DGA 2021, Table 3): N-best labels, rehearsal, LM, a small student.

    Dimitriadis et al., arXiv:2106.07578, 2021, §2.2 and §4.3, Table 3: students that are adapted with N-best
    soft labels and DGA improve from 22.50 to 20.40 % WER (large) and from 22.64 to 21.48 (small); a teacher
    with a language model has 20.80. There the teacher is another model, a hybrid; here it is the seed:
    self-training.

    docs/self-training.md describes every run. The encoder is frozen (Moonshine tiny, an ONNX file). The
    n-grams of `books` and `student` are given in docs/examples/self-training-books.yaml. Without a path they
    are made of the server's texts, as those of `lm`, but with weights for more text.

    Training is that of the recipe `librispeech` with another server learning rate: `labelled` is its row
    `dga-rehearsal`. The rate and the labels were chosen on one seed by the held-out speakers.
    """
    server = replace(SERVER, lr=4e-3)
    rounds = Rounds(ROUNDS, cohort=10, valid_every=5, save_every=10)
    plain = replace(hierarchical(LOCAL, server), server_schedule=SCHEDULE)
    softmax = replace(dga(LOCAL, 1.0, server), server_schedule=SCHEDULE)
    rehearsed = Rehearsed(plain, REHEARSAL, schedule=REHEARSAL_SCHEDULE)
    best = replace(rehearsed, inner=softmax)
    # Only the steps of rehearsal.
    alone = replace(fedavg(REHEARSAL), client_schedule=REHEARSAL_SCHEDULE)
    soft = Labelling(num_hypotheses=4, width=8)
    # This keeps nine in ten held-out utterances.
    confident = replace(soft, confidence=TokenProbability(threshold=0.86))
    # Hypotheses that a language model prefers have a lower acoustic probability, so the threshold is lower.
    unsure = TokenProbability(threshold=0.6)
    with_lm = Labelling(num_hypotheses=4, width=16, confidence=unsure, lm=Ngram(weight=1.25, word_bonus=3.0))
    likely = SentenceProbability(threshold=0.14)
    books = replace(with_lm, confidence=likely, lm=Ngram(weight=1.0, word_bonus=3.75, order=5))

    def run(algorithm: SelfTrained) -> Run:
        return Run(algorithm, rounds=rounds, labelled=0.0)

    tiny = CtcConfig(ConformerConfig(dim=144))  # a third of the parameters
    student = run(SelfTrained(best, books, OtherModel("seed")))
    return encoder_experiment(
        "self-training",
        {
            "seed": central("seed", rounds=40),
            "hard": run(SelfTrained(plain, Labelling(num_hypotheses=1, width=8), FrozenSeed())),
            "soft": run(SelfTrained(plain, soft)),
            "confident": run(SelfTrained(plain, confident)),
            "rehearsed": run(SelfTrained(rehearsed, confident)),
            "server-alone": Run(alone, "seed", Iid(1), rounds=replace(rounds, cohort=1)),
            "dga": run(SelfTrained(best, confident)),
            "lm": run(SelfTrained(best, with_lm)),
            "books": run(SelfTrained(best, books)),
            "current": run(SelfTrained(best, confident, CurrentModel(update_every=30))),
            "average": run(SelfTrained(best, confident, MovingAverage(decay=0.5, update_every=30))),
            "books-current": run(SelfTrained(best, books, CurrentModel(update_every=30))),
            "labelled": Run(best, rounds=rounds),
            "student-seed": replace(central("seed", rounds=40), model=tiny),
            "student": replace(student, start_run="student-seed", model=tiny),
        },
    )


def pruning_librispeech() -> Experiment:
    """Federated Pruning (2022), Tables 2 to 4, Figure 4: scores, layers, refinement, patterns, sparsities.

    R. Lin et al., Interspeech 2022, Tables 2 (scores), 3 (unified or adaptive), 4 (with or without
    refinement) and Figure 4 (patterns, sparsities). A small Conformer with CTC on the frozen encoder of
    Moonshine tiny (an ONNX file) is trained on all speakers of the pool. They are also the clients: the paper
    prunes on the training data. `dense` has the same rounds without pruning; the other rows are compared with
    it. `small` is a dense model with as many parameters as sparsity 0.5 leaves, trained centrally and then
    federated, for as many rounds. Two methods are not in the paper: `aligned` is `weight` with units in
    multiples of 16, which processors compute faster; `growth` is `adaptive` by how much the weights of a
    matrix grew, not by how large they are.
    """
    inner = replace(hierarchical(ENCODER_LOCAL, SERVER), server_schedule=Cosine(60, final=0.02, warmup=3))
    usual = FederatedPruning(inner, mask_every=5, fine_tune_from=30)
    methods = {
        "weight": usual,
        "momentum": replace(usual, score=ByMomentum()),
        "product": replace(usual, score=ByProduct()),
        "adaptive": replace(usual, allocation=Adaptive()),
        "adaptive-blocks": replace(usual, allocation=Adaptive(by_block=True)),
        "growth": replace(usual, allocation=AdaptiveGrowth()),
        "aligned": replace(usual, multiple=16),
        "unrefined": replace(usual, refine=False),
        "step": replace(usual, schedule=StepSparsity()),
        "l2": replace(usual, score=ByWeight(norm=2)),
        "half-column": replace(usual, pattern=HalfColumn()),
        "row": replace(usual, pattern=WholeRow()),
        "half-row": replace(usual, pattern=HalfRow()),
    }
    rounds = Rounds(total=60, cohort=10, valid_every=5, save_every=10)
    # 1.50 M parameters; sparsity 0.5 leaves 1.54 of 3.12 M.
    small = CtcConfig(ConformerConfig(dim=176))
    dense = Run(inner, "both", start_run="pretrained", rounds=rounds)
    pruned = {
        f"{name}-{sparsity}": replace(dense, algorithm=replace(method, sparsity=sparsity))
        for name, method in methods.items()
        for sparsity in (0.1, 0.2, 0.3, 0.4, 0.5)
    }
    return encoder_experiment(
        "pruning-librispeech",
        {
            "pretrained": central("both", rounds=80),
            "dense": dense,
            "small-pretrained": replace(central("both", rounds=80), model=small),
            "small": replace(dense, start_run="small-pretrained", model=small),
            **pruned,
        },
    )
