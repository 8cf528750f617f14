"""The corpus for an adaptation: texts of sessions and of an organisation, spoken, and real speech."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.session_texts import ForbiddenSequences, SessionText, TextRules, read_session_texts
from antiphon.data.store import FeatureStore
from antiphon.data.store import compute_features as compute_store
from antiphon.data.tokens import UNKNOWN
from antiphon.data.tts.spoken_corpus import Progress, RealSpeech, SpokenCorpus, plan_sayings, speak_corpus
from antiphon.data.tts.synthesiser import draw_voices, find_engines
from antiphon.experiment.settings import Speakers
from antiphon.experiment.starting import SeedModel
from antiphon.recipes.session_adaptation import ORGANISATION, REHEARSAL, SESSIONS
from antiphon.seeding import derive

POOL, VALID, TEST = Speakers.pool, Speakers.valid, Speakers.test  # splits of the corpus of real speech


@dataclass(frozen=True)
class Speaking:
    """How text becomes speech, and how much real speech is added."""

    engines: tuple[str, ...] = ()  # flite, festival, pico, espeak, kokoro; none: all that are installed
    num_voices: int = 16
    takes: int = 2  # voices that say a sentence
    checked: int = 10  # sentences of each session that one more voice says, to choose a round by
    rehearse_hours: float = 1.0  # real speech for the server, drawn from the pool
    valid_hours: float = 0.5  # real held-out speech, to choose a round by
    wrapped: bool = False  # a sentence may span lines of a text file; blank lines separate paragraphs
    max_words: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rehearse_hours", "valid_hours"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name):g}")


@dataclass(frozen=True)
class Texts:
    """The texts of sessions and organisation, and the words that the seed model was trained on."""

    sessions: tuple[SessionText, ...]
    organisation: tuple[SessionText, ...]
    known_words: frozenset[str]

    @property
    def used(self) -> tuple[SessionText, ...]:
        """Sessions with a usable sentence."""
        return tuple(session for session in self.sessions if session.sentences)


def read_texts(
    seed: SeedModel,
    sessions: Sequence[Path],
    organisation: Sequence[Path],
    real: Corpus | None,
    speaking: Speaking,
) -> Texts:
    """Read and check all text. Sentences of the test speech of the corpus `real` are dropped.

    There may be no sessions: then they are at the sites of a federation. A site has no corpus `real`.
    """
    rules = TextRules(
        real.alphabet if real else None,
        speaking.wrapped,
        speaking.max_words,
        holds=lambda written: UNKNOWN not in seed.tokens.encode(written),
    )
    session_texts = read_session_texts(sessions, rules) if sessions else []
    other_texts = read_session_texts(organisation, rules) if organisation else []
    scored = scored_speech(real, [text.name for text in session_texts]) if real else []
    tested = ForbiddenSequences.of(utterance.text for utterance in scored)
    session_texts, other_texts = (
        [text.without(tested) for text in texts] for texts in (session_texts, other_texts)
    )
    if sessions and not any(text.sentences for text in session_texts):
        reasons = {skipped.kind for text in session_texts for skipped in text.skipped}
        reason = "; ".join(sorted(reasons)) or "the files are empty"
        raise ValueError(f"no session has a sentence that can be used: {reason}")
    if organisation and not any(text.sentences for text in other_texts):
        raise ValueError("the organisation's text has no sentence that can be used")
    return Texts(tuple(session_texts), tuple(other_texts), known_words(real) if real else frozenset())


def known_words(corpus: Corpus) -> frozenset[str]:
    """Return the words of the transcripts that a model of this corpus was trained on."""
    return frozenset(word for u in corpus.utterances() if u.split == POOL for word in u.text.split())


def make_corpus(
    destination: Path,
    texts: Texts,
    rehearse: Corpus | None,
    speaking: Speaking,
    num_processes: int = 1,
    progress: Progress = lambda done, total: None,
) -> tuple[SpokenCorpus, RealSpeech | None]:
    """Write a corpus of all texts, spoken, and of real speech for rehearsal, validation and test.

    Without a corpus to rehearse on, nothing is there to choose a round by either: it is for a site.
    """
    if rehearse is not None and not (texts.sessions or texts.organisation):
        real = choose_real(rehearse, [], speaking)
        return speak_corpus(destination, [], [], {}, real, num_processes, progress), real
    engines = find_engines(speaking.engines)
    *voices, other = draw_voices(engines, speaking.num_voices + 1, speaking.seed)
    checked = [replace(text, sentences=text.sentences[: speaking.checked]) for text in texts.used]
    checked = checked if rehearse is not None else []
    sayings = [
        *plan_sayings(VALID, checked, [other], 1, speaking.seed),
        *plan_sayings(ORGANISATION, texts.organisation, voices, speaking.takes, speaking.seed),
        *plan_sayings(SESSIONS, texts.used, voices, speaking.takes, speaking.seed),
    ]
    names = [text.name for text in texts.sessions]
    chosen = choose_real(rehearse, names, speaking) if rehearse is not None else None
    spoken = speak_corpus(destination, sayings, voices, engines, chosen, num_processes, progress)
    if names and not any(utterance.split == SESSIONS for utterance in spoken.corpus.utterances()):
        raise ValueError(f"no voice can say anything of the sessions: {spoken.unsaid[0].reason}")
    return spoken, chosen


def choose_real(corpus: Corpus, sessions: Sequence[str], speaking: Speaking) -> RealSpeech:
    """Choose real speech for rehearsal (from the pool), for validation, and the test speech."""
    rehearsal = draw_speech(corpus, POOL, speaking.rehearse_hours, speaking.seed)
    valid = draw_speech(corpus, VALID, speaking.valid_hours, speaking.seed)
    chosen = [(utterance, REHEARSAL) for utterance in rehearsal]
    chosen += [(utterance, utterance.split) for utterance in (*valid, *scored_speech(corpus, sessions))]
    return RealSpeech(corpus, tuple(chosen))


def draw_speech(corpus: Corpus, split: str, hours: float, seed: int) -> list[Utterance]:
    """Draw utterances of a split until they last so many hours, or all of them."""
    utterances = _utterances(corpus, split)
    order = np.random.default_rng(derive(seed, "drawn", split)).permutation(len(utterances))
    drawn = [utterances[index] for index in order]
    before = np.cumsum([0.0, *(utterance.seconds for utterance in drawn[:-1])])
    return [utterance for utterance, start in zip(drawn, before, strict=True) if start < 3600 * hours]


def scored_speech(corpus: Corpus, sessions: Sequence[str]) -> list[Utterance]:
    """Return the speech of the sessions in the test split; all of the split if they have none."""
    utterances = _utterances(corpus, TEST)
    return [utterance for utterance in utterances if utterance.session in sessions] or utterances


def _utterances(corpus: Corpus, split: str) -> list[Utterance]:
    utterances = [utterance for utterance in corpus.utterances() if utterance.split == split]
    if not utterances:
        raise ValueError(
            f"{corpus.path} has no split {split!r}: it needs {POOL} to rehearse on, {VALID} to choose a "
            f"round by and {TEST} to be scored on"
        )
    return utterances


def compute_features(
    seed: SeedModel,
    spoken: SpokenCorpus,
    real: RealSpeech | None,
    num_processes: int,
    progress: Progress | None,
) -> FeatureStore:
    """Compute the features of synthetic speech; copy those of real speech if they exist."""
    ids = frozenset(utterance.id for utterance, _ in real.chosen) if real else frozenset()
    lender, frontend = real.corpus if real else None, seed.blueprint.frontend
    return compute_store(spoken.corpus, frontend, num_processes, progress, lender=lender, lent=ids)
