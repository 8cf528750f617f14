"""Adaptation by synthetic speech: an organisation has text and no speech, and a model that is to know it.

Dimitriadis et al., "Dynamic Gradient Aggregation for Federated Domain Adaptation", 2021, §2.2 and §4.2.
Two levels: the seed model is adapted in one place to the organisation's text (with real speech among it),
then federated, every session (a meeting, a presentation) being a client whose data is its own text, spoken;
after each round the server rehearses on real speech that the seed model has seen already (eq. 5).

Deviations. The paper's speech comes from a neural service, ours from free engines, whose voices are older;
each sentence is said by several. The paper does not say which round it takes; here it is the best on real
held-out speech, which tells when the model drifts, and on sentences of the sessions in a voice that nothing
is trained on, which tells whether it knows them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.algorithms.fedavg import dga, select
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.partition import BySession, Iid
from antiphon.data.session_texts import ForbiddenSequences, SessionText, TextRules, read_session_texts
from antiphon.data.store import FeatureStore
from antiphon.data.store import compute_features as compute_store
from antiphon.data.tokens import UNKNOWN, SavedTokensConfig, Tokens, load_tokens
from antiphon.data.tts.spoken_corpus import Progress, RealSpeech, SpokenCorpus, plan_sayings, speak_corpus
from antiphon.data.tts.synthesiser import draw_voices, find_engines
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.models.noise import SpecAugment
from antiphon.models.reduced import ReducedConfig
from antiphon.recognizer import Blueprint, open_blueprint
from antiphon.seeding import derive
from antiphon.server.optimizers import Adam
from antiphon.server.schedules import Cosine
from antiphon.tasks.local_training import LocalTraining

POOL, VALID, TEST = Speakers.pool, Speakers.valid, Speakers.test  # of the corpus to rehearse on
REHEARSAL, SESSIONS, ORGANISATION = "rehearsal", "sessions", "organisation"  # of the one made here


@dataclass(frozen=True)
class Speaking:
    """How text becomes speech, and how much real speech goes with it."""

    engines: tuple[str, ...] = ()  # flite, festival, pico, espeak; none: all that are installed
    num_voices: int = 16
    takes: int = 2  # voices that say a sentence
    checked: int = 10  # sentences of each session that one voice more says, to choose a round by
    rehearse_hours: float = 1.0  # of real speech for the server, drawn from the pool
    valid_hours: float = 0.5  # of real held-out speech, to choose a round by
    wrapped: bool = False  # lines of text files are cut anywhere, blank lines part paragraphs
    max_words: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rehearse_hours", "valid_hours"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name):g}")


@dataclass(frozen=True)
class Texts:
    """What there is to say: sessions, the organisation, and the words that the seed model was trained on."""

    sessions: tuple[SessionText, ...]
    organisation: tuple[SessionText, ...]
    known_words: frozenset[str]

    @property
    def used(self) -> tuple[SessionText, ...]:
        """Sessions with a sentence that can be said."""
        return tuple(session for session in self.sessions if session.sentences)


@dataclass(frozen=True)
class Seed:
    """The model to be adapted: where it is, what it is made of and spells in, the masks of its training."""

    folder: Path
    blueprint: Blueprint
    tokens: Tokens
    augment: SpecAugment = field(default_factory=SpecAugment)

    @classmethod
    def open(cls, run: Path) -> Seed:
        model, blueprint = open_blueprint(run)
        about = run / "run.json"
        augment = SpecAugment()
        if about.exists():
            augment = config.from_dict(SpecAugment, json.loads(about.read_text())["config"]["augment"])
        return cls(run.resolve(), blueprint, load_tokens(model), augment)


def read_texts(
    seed: Seed, sessions: Sequence[Path], organisation: Sequence[Path], rehearse: Corpus, speaking: Speaking
) -> Texts:
    """All text, checked before any of it is said: none may be in the corpus's test speech."""
    rules = TextRules(
        rehearse.alphabet,
        speaking.wrapped,
        speaking.max_words,
        holds=lambda written: UNKNOWN not in seed.tokens.encode(written),
    )
    own = read_session_texts(sessions, rules)
    all_own = read_session_texts(organisation, rules) if organisation else []
    tested = ForbiddenSequences.of(u.text for u in scored_speech(rehearse, [text.name for text in own]))
    own = [text.without(tested) for text in own]
    all_own = [text.without(tested) for text in all_own]
    if not any(text.sentences for text in own):
        reasons = sorted({one.kind for text in own for one in text.skipped}) or ["the files are empty"]
        raise ValueError(f"no session has a sentence that can be used: {'; '.join(reasons)}")
    if organisation and not any(text.sentences for text in all_own):
        raise ValueError("the organisation's text has no sentence that can be used")
    return Texts(tuple(own), tuple(all_own), known_words(rehearse))


def known_words(corpus: Corpus) -> frozenset[str]:
    """The words of the transcripts that a model of this corpus was trained on."""
    return frozenset(word for u in corpus.utterances() if u.split == POOL for word in u.text.split())


def make_corpus(
    destination: Path,
    texts: Texts,
    rehearse: Corpus,
    speaking: Speaking,
    num_processes: int = 1,
    progress: Progress = lambda done, total: None,
) -> tuple[SpokenCorpus, RealSpeech]:
    """A corpus of all the text, spoken, with real speech to rehearse on, to choose a round by, to test on."""
    engines = find_engines(speaking.engines)
    *voices, other = draw_voices(engines, speaking.num_voices + 1, speaking.seed)
    checked = [replace(text, sentences=text.sentences[: speaking.checked]) for text in texts.used]
    sayings = [
        *plan_sayings(VALID, checked, [other], 1, speaking.seed),
        *plan_sayings(ORGANISATION, texts.organisation, voices, speaking.takes, speaking.seed),
        *plan_sayings(SESSIONS, texts.used, voices, speaking.takes, speaking.seed),
    ]
    real = choose_real(rehearse, [text.name for text in texts.sessions], speaking)
    spoken = speak_corpus(destination, sayings, voices, engines, real, num_processes, progress)
    if not any(utterance.split == SESSIONS for utterance in spoken.corpus.utterances()):
        raise ValueError(f"no voice can say anything of the sessions: {spoken.unsaid[0].reason}")
    return spoken, real


def choose_real(corpus: Corpus, sessions: Sequence[str], speaking: Speaking) -> RealSpeech:
    """Some of the pool for the server, some held-out speech to choose a round by, and the test speech."""
    pool, valid = (
        draw_speech(corpus, split, hours, speaking.seed)
        for split, hours in ((POOL, speaking.rehearse_hours), (VALID, speaking.valid_hours))
    )
    chosen = [(utterance, REHEARSAL) for utterance in pool]
    chosen += [(utterance, utterance.split) for utterance in (*valid, *scored_speech(corpus, sessions))]
    return RealSpeech(corpus, tuple(chosen))


def draw_speech(corpus: Corpus, split: str, hours: float, seed: int) -> list[Utterance]:
    """Utterances of a split drawn until they last so many hours, or all of them."""
    there = _of_split(corpus, split)
    order = np.random.default_rng(derive(seed, "drawn", split)).permutation(len(there))
    before = np.cumsum([0.0, *(there[place].seconds for place in order[:-1])])
    return [there[place] for place, seconds in zip(order, before, strict=True) if seconds < 3600 * hours]


def scored_speech(corpus: Corpus, sessions: Sequence[str]) -> list[Utterance]:
    """The sessions' own real speech in the corpus's test split; all of the split where it has none."""
    there = _of_split(corpus, TEST)
    return [utterance for utterance in there if utterance.session in sessions] or there


def _of_split(corpus: Corpus, split: str) -> list[Utterance]:
    found = [utterance for utterance in corpus.utterances() if utterance.split == split]
    if not found:
        raise ValueError(
            f"{corpus.path} has no split {split!r}: it needs {POOL} to rehearse on, {VALID} to choose a "
            f"round by and {TEST} to be scored on"
        )
    return found


def compute_features(
    seed: Seed, spoken: SpokenCorpus, real: RealSpeech, num_processes: int, progress: Progress | None
) -> FeatureStore:
    """Of the new corpus: computed for synthetic speech, copied for real speech whose features there are."""
    ids = frozenset(utterance.id for utterance, _ in real.chosen)
    frontend = seed.blueprint.frontend
    return compute_store(spoken.corpus, frontend, num_processes, progress, lender=real.corpus, lent=ids)


def parts(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Patterns of the parameters of a model's parts: encoder, decoder (all else), all, and more.

    >>> parts(["encoder.norm.weight", "output.weight"])["decoder"]
    ('output.*',)
    """
    tops = [f"{top}.*" for top in sorted({name.split(".")[0] for name in names})]
    found = {"all": ("*",), "encoder": ("encoder.*",), "decoder": tuple(t for t in tops if t != "encoder.*")}
    if "prediction.*" in tops:
        joint = tuple(top for top in tops if top not in ("encoder.*", "prediction.*"))
        found |= {"prediction": ("prediction.*",), "joint": joint}
    return found


def trained_parts(seed: Seed, part: str) -> tuple[str, ...]:
    """The patterns for `--train`: a part's name, or a pattern such as `encoder.layers.2.*`."""
    params = {name: p.detach() for name, p in seed.blueprint.build(seed.tokens.size).named_parameters()}
    known = parts(list(params))
    if part in known:
        return known[part]
    if "*" not in part and "." not in part:
        raise config.unknown(part, known, "--train", "part")
    select(params, (part,))
    return (part,)


def organisation_run(
    start_run: str, trainable: tuple[str, ...], data: str | dict[str, int], rounds: int
) -> Run:
    """Level 1: central training on the organisation's text, spoken, and on real speech where asked for."""
    local = LocalTraining(lr=5e-4, steps=20, batch_seconds=120.0)
    central = Central(local, schedule=Cosine(rounds, final=0.1), trainable=trainable)
    return Run(central, data, Iid(1), start_run, Rounds(total=rounds, cohort=1, valid_every=5))


def session_run(start_run: str, trainable: tuple[str, ...], num_rounds: int, server_lr: float = 5e-4) -> Run:
    """Level 2: DGA over sessions, and after every round some steps on real speech."""
    local = LocalTraining(lr=0.05, epochs=1, batch_seconds=60.0)
    inner = replace(dga(local, beta=1.0, server=Adam(lr=server_lr, epsilon=1e-5)), trainable=trainable)
    algorithm = Rehearsed(inner, LocalTraining(lr=0.05, steps=10, batch_seconds=60.0))
    rounds = Rounds(total=num_rounds, cohort=20, valid_every=5)
    return Run(algorithm, "federated", BySession(), start_run, rounds)


def adapted_experiment(
    seed: Seed, has_organisation: bool, part: str, rounds: int, settings: Sequence[str] = ()
) -> Experiment:
    """An experiment on such a corpus whose last run, `adapted`, is the seed model after both levels."""
    trainable, runs = trained_parts(seed, part), {}
    if has_organisation:
        runs["organisation"] = organisation_run("", trainable, {"seed": 1, "organisation": 1}, rounds)
    runs["adapted"] = session_run("organisation" if has_organisation else "", trainable, rounds)
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


def adapted_speakers(has_organisation: bool) -> Speakers:
    """Who is who in a corpus made here."""
    return Speakers(pool=SESSIONS, server=REHEARSAL, organisation=ORGANISATION if has_organisation else "")
