"""Session adaptation on LibriSpeech: Table 2 of the DGA paper (2021) with chapters of audiobooks as sessions.

A session is a chapter of the test split. Its text is the rest of its book, the organisation's text is from
novels of other authors. `benchmarks/adaptation_texts.py` writes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from antiphon.data.frontends import OnnxEncoder
from antiphon.data.tokens import UnigramConfig
from antiphon.experiment.settings import Experiment, Run
from antiphon.models.transducer import TransducerConfig
from antiphon.recipes.adaptation import adapted_speakers, organisation_run, parts, session_run
from antiphon.recipes.speech import speech_transducer
from antiphon.server.run_context import parts_of

# Chosen on one seed by the held-out speech: docs/adaptation.md.
TENANT_ROUNDS, SESSION_ROUNDS, SESSION_RATE = 60, 20, 1e-4
MIXED = {"seed": 3, "organisation": 1}  # of 20,000 sentences, about a third of what is heard is real


def session_adaptation() -> Experiment:
    """Adaptation by synthetic speech (DGA 2021, Table 2): organisation, sessions, encoder or decoder."""
    base = speech_transducer()
    assert isinstance(base.model, TransducerConfig)
    names = [name for name, _ in base.model.build(1, 2).named_parameters()]
    seed = replace(base.runs["central"], data="seed")
    return replace(
        base,
        recipe="session-adaptation",
        frontend=OnnxEncoder("encoder_model.onnx"),
        tokens=UnigramConfig(256),
        speakers=adapted_speakers(has_organisation=True),
        runs={"seed": seed, **table_rows("seed", parts(names))},
    )


def table_rows(
    start_run: str, part: Mapping[str, tuple[str, ...]], rounds: int = TENANT_ROUNDS
) -> dict[str, Run]:
    """The rows below the seed model: what is adapted to, and which part of the model is.

    Those named `all` are not the paper's; `real-all` is what the others must beat: as many steps, no text.
    """
    decoder = part["decoder"]
    tenant = partial(organisation_run, start_run, rounds=rounds)
    federated = session_run("tenant-real", decoder, SESSION_ROUNDS, SESSION_RATE)
    _, not_rehearsed = parts_of(federated.algorithm)
    return {
        "tenant-encoder": tenant(part["encoder"], "organisation"),
        "tenant-decoder": tenant(decoder, "organisation"),
        "tenant-real": tenant(decoder, MIXED),
        "sessions-alone": replace(federated, algorithm=not_rehearsed),
        "sessions-real": federated,
        "real-all": tenant(part["all"], "seed"),
        "tenant-real-all": tenant(part["all"], MIXED),
        "sessions-real-all": session_run("tenant-real-all", part["all"], SESSION_ROUNDS, SESSION_RATE),
    }
