"""Adaptation by synthetic speech: a model learns from the text of an organisation and of its sessions.

Dimitriadis et al., "Dynamic Gradient Aggregation for Federated Domain Adaptation", 2021, §2.2 and §4.2. There
are two levels. First the seed model is adapted centrally to the organisation's text and real speech. Then
training is federated: every session (a meeting, a presentation) is a client whose data is its own text,
spoken. After each round the server rehearses on real speech that the seed model was trained on (eq. 5).

Deviations. The paper's speech comes from a neural service, ours from free engines with older voices; several
voices say each sentence. The paper does not say which round it takes. Here it is the best round on real
held-out speech, which shows whether the model drifts, together with sentences of the sessions in a voice that
is not in the training data, which show whether the model knows them.

`adapted_experiment` is the experiment of `antiphon adapt`. `session_adaptation` is Table 2 of the paper on
LibriSpeech: a session is a chapter of the test split, its text is the rest of its book, and the
organisation's text is from novels of other authors. `benchmarks/adaptation_texts.py` writes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.algorithms.fedavg import dga, select
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.data.partition import BySession, Iid
from antiphon.data.tokens import SavedTokensConfig
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.experiment.starting import SeedModel
from antiphon.models.reduced import ReducedConfig
from antiphon.recipes.speech import speech_transducer
from antiphon.server.optimizers import Adam
from antiphon.server.run_context import parts_of
from antiphon.server.schedules import Cosine
from antiphon.tasks.local_training import LocalTraining

REHEARSAL, SESSIONS, ORGANISATION = "rehearsal", "sessions", "organisation"  # splits of the spoken corpus
# Chosen on one seed by the held-out speech: docs/adaptation.md.
TENANT_ROUNDS, SESSION_ROUNDS, SESSION_RATE = 60, 20, 1e-4
MIXED = {"seed": 3, "organisation": 1}  # with 20,000 sentences, about a third of the speech is real


def adapted_experiment(
    seed: SeedModel, has_organisation: bool, part: str, rounds: int, settings: str | Sequence[str] = ()
) -> Experiment:
    """Return the experiment whose last run, `adapted`, is the seed model after both levels."""
    trainable, runs = _trainable(seed, part), {}
    if has_organisation:
        runs["organisation"] = _organisation_run("", trainable, {"seed": 1, "organisation": 1}, rounds)
    runs["adapted"] = _session_run("organisation" if has_organisation else "", trainable, rounds)
    first = next(iter(runs))
    runs[first] = replace(runs[first], start_folder=str(seed.folder))
    model = seed.blueprint.model
    experiment = Experiment(
        recipe="adapt",
        frontend=seed.blueprint.frontend,
        tokens=SavedTokensConfig(str(seed.folder)),
        model=model.full if isinstance(model, ReducedConfig) else model,
        augment=seed.augment,
        speakers=adapted_speakers(has_organisation),
        runs=runs,
    )
    return config.override(experiment, settings)


def session_adaptation() -> Experiment:
    """Adaptation by synthetic speech (DGA 2021, Table 2): organisation, sessions, encoder or decoder."""
    base = speech_transducer()
    names = [name for name, _ in base.model.build(1, 2).named_parameters()]
    runs = {"seed": replace(base.runs["central"], data="seed"), **table_rows("seed", parts(names))}
    return replace(base, recipe="session-adaptation", speakers=adapted_speakers(True), runs=runs)


def table_rows(
    start_run: str, part: Mapping[str, tuple[str, ...]], rounds: int = TENANT_ROUNDS
) -> dict[str, Run]:
    """Return the rows below the seed model: which text it is adapted to, and which part of it is trained.

    Rows named `all` are not in the paper. `real-all` is what the others must beat: as many steps, no text.
    """
    decoder = part["decoder"]
    tenant = partial(_organisation_run, start_run, rounds=rounds)
    federated = _session_run("tenant-real", decoder, SESSION_ROUNDS, SESSION_RATE)
    _, without_rehearsal = parts_of(federated.algorithm)
    return {
        "tenant-encoder": tenant(part["encoder"], "organisation"),
        "tenant-decoder": tenant(decoder, "organisation"),
        "tenant-real": tenant(decoder, MIXED),
        "sessions-alone": replace(federated, algorithm=without_rehearsal),
        "sessions-real": federated,
        "real-all": tenant(part["all"], "seed"),
        "tenant-real-all": tenant(part["all"], MIXED),
        "sessions-real-all": _session_run("tenant-real-all", part["all"], SESSION_ROUNDS, SESSION_RATE),
    }


def adapted_speakers(has_organisation: bool) -> Speakers:
    """Return the roles of the splits of a spoken corpus."""
    return Speakers(pool=SESSIONS, server=REHEARSAL, organisation=ORGANISATION if has_organisation else "")


def parts(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return patterns of the parameters of a model's parts: encoder, decoder (all else), all, and more.

    >>> parts(["encoder.norm.weight", "output.weight"])["decoder"]
    ('output.*',)
    """
    tops = [f"{top}.*" for top in sorted({name.split(".")[0] for name in names})]
    decoder = tuple(top for top in tops if top != "encoder.*")
    patterns = {"all": ("*",), "encoder": ("encoder.*",), "decoder": decoder}
    if "prediction.*" in tops:
        joint = tuple(top for top in decoder if top != "prediction.*")
        patterns |= {"prediction": ("prediction.*",), "joint": joint}
    return patterns


def _trainable(seed: SeedModel, part: str) -> tuple[str, ...]:
    """Return the patterns for `--train`: a part's name, or a pattern such as `encoder.layers.2.*`."""
    params = {name: p.detach() for name, p in seed.blueprint.build(seed.tokens.size).named_parameters()}
    patterns = parts(list(params))
    if part in patterns:
        return patterns[part]
    if "*" not in part and "." not in part:
        raise config.unknown(part, patterns, "--train", "part")
    select(params, (part,))
    return (part,)


def _organisation_run(
    start_run: str, trainable: tuple[str, ...], data: str | dict[str, int], rounds: int
) -> Run:
    """Return level 1: central training on the organisation's text, spoken, and on real speech."""
    local = LocalTraining(lr=5e-4, steps=20, batch_seconds=120.0)
    central = Central(local, schedule=Cosine(rounds, final=0.1), trainable=trainable)
    return Run(central, data, Iid(1), start_run, Rounds(total=rounds, cohort=1, valid_every=5))


def _session_run(start_run: str, trainable: tuple[str, ...], rounds: int, server_lr: float = 5e-4) -> Run:
    """Return level 2: DGA over sessions, with rehearsal on real speech after every round."""
    local = LocalTraining(lr=0.05, epochs=1, batch_seconds=60.0)
    inner = replace(dga(local, beta=1.0, server=Adam(lr=server_lr, epsilon=1e-5)), trainable=trainable)
    algorithm = Rehearsed(inner, LocalTraining(lr=0.05, steps=10, batch_seconds=60.0))
    return Run(algorithm, "federated", BySession(), start_run, Rounds(total=rounds, cohort=20, valid_every=5))
