"""Shallow fusion: a word-level n-gram model beside the recogniser during the search.

C. Gulcehre et al., "On Using Monolingual Corpora in Neural Machine Translation", 2015; for CTC, A. Hannun et
al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent DNNs", 2014:
score = acoustic + weight · ln p(words) + word_bonus · number of words. A word is scored when it is complete:
when a token begins the next one, or at the end. A prefix of no word in the vocabulary is scored as an unknown
word at once: otherwise hypotheses that never complete a word would be the cheapest. The tokens may be
characters or subwords, as long as they spell words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.data.tokens import Tokens
from antiphon.lm.ngram import END_ID, UNKNOWN_ID, NgramModel, State


@dataclass(frozen=True)
class Fusion:
    """A language model and its weights; scores are natural logarithms."""

    model: NgramModel
    weight: float = 0.5
    word_bonus: float = 0.0


class Context:
    """The words before a word, and the scores of words after them."""

    __slots__ = ("scored", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.scored: dict[int, tuple[Context, float]] = {}  # word -> the context after it, and its ln p


class Progress(NamedTuple):
    """The words of a hypothesis: complete ones in `context`, `lm` and `num_words`, the current one in `word`.

    pending: ln p of the current word if it is certainly unknown, else 0.
    """

    context: Context
    word: str = ""
    lm: float = 0.0
    num_words: int = 0
    pending: float = 0.0


@dataclass(frozen=True)
class Speller:
    """Follows the words of hypotheses token by token; a word after the same context is scored once."""

    fusion: Fusion
    surfaces: Sequence[str]
    _contexts: dict[State, Context] = field(default_factory=dict, repr=False)
    _begins: dict[str, bool] = field(default_factory=dict, repr=False)  # whether a word begins with this text

    def begin(self) -> Progress:
        return Progress(self._context(self.fusion.model.begin()))

    def extend(self, progress: Progress, token: int) -> Progress:
        """Append a token."""
        surface = self.surfaces[token]
        if surface.startswith(" "):
            progress, surface = self.finish_word(progress), surface[1:]
        context, word, lm, num_words, pending = progress
        word += surface
        if word and not pending and not self._begins_word(word):
            pending = self._score(context, UNKNOWN_ID)[1]
        return Progress(context, word, lm, num_words, pending)

    def finish_word(self, progress: Progress) -> Progress:
        """Complete the current word, if there is one."""
        if not progress.word:
            return progress
        id = self.fusion.model.ids.get(progress.word, UNKNOWN_ID)
        context, log_prob = self._score(progress.context, id)
        return Progress(context, "", progress.lm + log_prob, progress.num_words + 1)

    def finish(self, progress: Progress) -> Progress:
        """Complete the sentence."""
        last = self.finish_word(progress)
        _, end = self._score(last.context, END_ID)
        return Progress(last.context, "", last.lm + end, last.num_words)

    def _begins_word(self, text: str) -> bool:
        if text not in self._begins:
            self._begins[text] = self.fusion.model.has_prefix(text)
        return self._begins[text]

    def _context(self, state: State) -> Context:
        if state not in self._contexts:
            self._contexts[state] = Context(state)
        return self._contexts[state]

    def _score(self, context: Context, id: int) -> tuple[Context, float]:
        if id not in context.scored:
            state, log_prob = self.fusion.model.score_id(context.state, id)
            context.scored[id] = self._context(state), log_prob
        return context.scored[id]

    def bonus(self, progress: Progress) -> float:
        """The contribution of the words so far to the score of a hypothesis."""
        lm = progress.lm + progress.pending
        return self.fusion.weight * lm + self.fusion.word_bonus * progress.num_words


def surfaces(tokens: Tokens) -> tuple[str, ...]:
    """The text of each token inside a sentence; it starts with a space if the token begins a new word.

    >>> from antiphon.data.tokens import Characters
    >>> surfaces(Characters(" ab"))
    ('', '⁇', ' ', 'a', 'b')
    """
    probe = next((id for id in range(2, tokens.size) if tokens.decode([id]).strip()), None)
    if probe is None:
        raise ValueError("these tokens spell nothing: no words can be told apart")
    before = tokens.decode([probe])
    texts = ["", *(tokens.decode([probe, id])[len(before) :] for id in range(1, tokens.size))]
    for id, surface in enumerate(texts):
        if " " in surface[1:]:
            raise ValueError(f"token {id} spells more than one word ({surface!r}): none can be scored alone")
    return tuple(texts)
