"""The hypothesis with the fewest expected word errors, which need not be the likeliest one.

A. Stolcke, Y. König and M. Weintraub, "Explicit Word Error Minimization in N-best List Rescoring", Eurospeech
1997. A list's scores s become posteriors p = softmax(sharpness · s), and the text is chosen that has the
smallest sum over all texts of p times the number of words in which the two differ: one in the middle of many
that are nearly as likely as the best one. Very sharp posteriors choose the likeliest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.decoding.rescoring import Lists, of_own_session, others
from antiphon.scoring.error_rate import word_distances

# Weights are relative to one that is fixed, so that scores may be in any unit. The first is the likeliest's.
SHARPNESSES = (np.inf, *(2.0**-power for power in range(10)))


@dataclass(frozen=True)
class MinimumRisk:
    """Lists, and the distances of the texts of each."""

    lists: Lists
    distances: tuple[np.ndarray, ...]

    @classmethod
    def measure(cls, lists: Lists) -> MinimumRisk:
        texts = ([hypothesis.text for hypothesis in entry.hypotheses] for entry in lists.entries)
        return cls(lists, tuple(map(word_distances, texts)))

    def of(self, places: Sequence[int]) -> MinimumRisk:
        """Some of the lists."""
        return MinimumRisk(self.lists.of(places), tuple(self.distances[place] for place in places))

    def best(self, weights: Mapping[str, float], sharpness: float) -> np.ndarray:
        """The row of each list with the fewest expected errors; the first of equals."""
        lists = self.lists
        if np.isinf(sharpness):
            return lists.best(weights)
        scores = sharpness * lists.scores(weights)
        chosen = []
        for start, end, apart in zip(lists.starts[:-1], lists.starts[1:], self.distances, strict=True):
            likely = np.exp(scores[start:end] - scores[start:end].max())
            chosen.append(start + int(np.argmin(apart @ likely)))
        return np.array(chosen, dtype=np.int64)

    def tune(self, weights: Mapping[str, float]) -> float:
        """The sharpness with the fewest word errors on these lists; of equals the sharpest."""
        return min(SHARPNESSES, key=lambda value: self.lists.count(self.best(weights, value)).total)

    def best_leaving_out(self, weights: Mapping[str, Mapping[str, float]]) -> np.ndarray:
        """The same under the weights of each list's session, with a sharpness that is found on the others."""
        chosen = {
            left_out: self.best(weights[left_out], self.of(places).tune(weights[left_out]))
            for left_out, places in others(self.lists).items()
        }
        return of_own_session(self.lists, chosen)
