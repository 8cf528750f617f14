"""Shallow fusion: a word-level n-gram model beside the recogniser while it searches.

C. Gulcehre et al., "On Using Monolingual Corpora in Neural Machine Translation", 2015; for CTC, A. Hannun et
al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent DNNs", 2014:
score = acoustic + weight · ln p(words) + word_bonus · number of words. A word is scored once it is over: when
a token begins the next one, or at the end. A beginning that no word of the vocabulary has is an unknown word
already, and is scored as one at once: or hypotheses that never finish a word would be the cheapest.
Works on any tokens that spell words, characters or subwords.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.data.tokens import Tokens
from antiphon.lm.ngram import END_ID, UNKNOWN_ID, NgramModel, State


@dataclass(frozen=True)
class Fusion:
    """A language model and what its words weigh; scores are natural logarithms."""

    model: NgramModel
    weight: float = 0.5
    word_bonus: float = 0.0


@dataclass(frozen=True)
class Progress:
    """How far the words of a hypothesis are: finished ones in `state`, `lm` and `num_words`, one in `word`.

    pending: ln p of the word in hand where it is certain to be unknown, else 0.
    """

    state: State
    word: str = ""
    lm: float = 0.0
    num_words: int = 0
    pending: float = 0.0


@dataclass(frozen=True)
class Speller:
    """Follows the words of hypotheses, token by token, and scores each word after the same others once."""

    fusion: Fusion
    surfaces: Sequence[str]
    _scored: dict[tuple[State, int], tuple[State, float]] = field(default_factory=dict, repr=False)

    def begin(self) -> Progress:
        return Progress(self.fusion.model.begin())

    def extend(self, progress: Progress, token: int) -> Progress:
        """One token further."""
        surface = self.surfaces[token]
        if surface.startswith(" "):
            progress, surface = self.finish_word(progress), surface[1:]
        word, pending = progress.word + surface, progress.pending
        if word and not pending and not self.fusion.model.has_prefix(word):
            pending = self._score(progress.state, word)[1]
        return Progress(progress.state, word, progress.lm, progress.num_words, pending)

    def finish_word(self, progress: Progress) -> Progress:
        """The word in hand is over, if there is one."""
        if not progress.word:
            return progress
        state, log_prob = self._score(progress.state, progress.word)
        return Progress(state, "", progress.lm + log_prob, progress.num_words + 1)

    def finish(self, progress: Progress) -> Progress:
        """The sentence is over."""
        over = self.finish_word(progress)
        _, end = self._score_id(over.state, END_ID)
        return Progress(over.state, "", over.lm + end, over.num_words)

    def _score(self, state: State, word: str) -> tuple[State, float]:
        return self._score_id(state, self.fusion.model.ids.get(word, UNKNOWN_ID))

    def _score_id(self, state: State, id: int) -> tuple[State, float]:
        key = state, id
        if key not in self._scored:
            self._scored[key] = self.fusion.model.score_id(state, id)
        return self._scored[key]

    def bonus(self, progress: Progress) -> float:
        """What its words, as far as they are known, add to the score of a hypothesis."""
        lm = progress.lm + progress.pending
        return self.fusion.weight * lm + self.fusion.word_bonus * progress.num_words


def surfaces(tokens: Tokens) -> tuple[str, ...]:
    """What each token spells inside a text; one that begins a word, or parts two, begins with a space.

    >>> from antiphon.data.tokens import Characters
    >>> surfaces(Characters(" ab"))
    ('', '⁇', ' ', 'a', 'b')
    """
    probe = next((id for id in range(2, tokens.size) if tokens.decode([id]).strip()), None)
    if probe is None:
        raise ValueError("these tokens spell nothing: no words can be told apart")
    before = tokens.decode([probe])
    found = ["", *(tokens.decode([probe, id])[len(before) :] for id in range(1, tokens.size))]
    for id, surface in enumerate(found):
        if " " in surface[1:]:
            raise ValueError(f"token {id} spells more than one word ({surface!r}): none can be scored alone")
    return tuple(found)
