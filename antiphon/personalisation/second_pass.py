"""The second pass of Federated Marginal Personalization: lists ranked by adapted models, and the settings.

Z. Liu and F. Peng, 2020, §3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from antiphon.decoding.rescoring import Lists, first_maxima
from antiphon.personalisation.federation import Federation, Schedule
from antiphon.personalisation.marginal_adaptation import Mixture
from antiphon.scoring.error_rate import alignment
from antiphon.scoring.significance import MatchedPairs, error_segments, matched_pairs


@dataclass(frozen=True)
class SecondPass:
    """Lists with the weights of their columns. `adapted` names the column of the adapted model.

    λ multiplies ln(g/u) inside that model, so the weight of Σ ln(g/u) is λ times the weight of the model.
    """

    lists: Lists
    weights: Mapping[str, float]
    adapted: str

    def __post_init__(self) -> None:
        if self.adapted not in self.lists.columns:
            raise ValueError(
                f"no column {self.adapted!r} to adapt: there are {', '.join(self.lists.columns)}"
            )

    def best(self, ratios: np.ndarray, lam: float) -> np.ndarray:
        """Return the row of the best hypothesis of each list, with Σ ln(g/u) of every hypothesis."""
        adapted = self.weights.get(self.adapted, 0.0) * lam * ratios
        return first_maxima(self.lists.scores(self.weights) + adapted, self.lists.starts)

    def unadapted(self) -> np.ndarray:
        """Return the row of the best hypothesis of each list, with the background model."""
        return self.best(np.zeros(len(self.lists.values)), 0.0)

    def errors(self, rows: np.ndarray) -> np.ndarray:
        """Return the word errors of these hypotheses: [lists]."""
        errors: np.ndarray = self.lists.errors[rows, :3].sum(axis=1)
        return errors


@dataclass(frozen=True)
class Grid:
    """Settings to try on held-out clients."""

    alphas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    betas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    lams: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0)
    sigmas: tuple[float, ...] = (0.1, 1.0, 5.0)

    def mixtures(self, sigma: float, smoothing: float) -> list[Mixture]:
        """Return the mixtures that leave some weight to the background, without λ."""
        return [
            Mixture(alpha, beta, 0.0, sigma, smoothing)
            for alpha in self.alphas
            for beta in self.betas
            if 0 < alpha + beta < 1
        ]


def search_grid(
    federation: Federation,
    second_pass: SecondPass,
    schedule: Schedule,
    grid: Grid,
    smoothing: float = 0.1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mixture:
    """Return the settings with the fewest word errors on these lists; no adaptation if none has fewer."""
    best = Mixture(0.0, 0.0, 0.0, grid.sigmas[0], smoothing)
    fewest = int(second_pass.errors(second_pass.unadapted()).sum())
    for done, sigma in enumerate(grid.sigmas):
        progress(done, len(grid.sigmas))
        history = federation.history(sigma, schedule)
        for mixture in grid.mixtures(sigma, smoothing):
            ratios = federation.ratios(history, mixture)
            for lam in grid.lams:
                errors = int(second_pass.errors(second_pass.best(ratios, lam)).sum())
                if errors < fewest:
                    fewest, best = errors, replace(mixture, lam=lam)
    progress(len(grid.sigmas), len(grid.sigmas))
    return best


def compare(lists: Lists, before: np.ndarray, after: np.ndarray) -> MatchedPairs:
    """Run NIST's matched-pairs test on two choices of hypotheses (rows) for the same lists."""
    texts = [hypothesis.text for entry in lists.entries for hypothesis in entry.hypotheses]
    segments = []
    for entry, one, other in zip(lists.entries, before, after, strict=True):
        said = (entry.reference or "").split()
        segments += error_segments(alignment(said, texts[one].split()), alignment(said, texts[other].split()))
    counts = np.array(segments, dtype=float).reshape(-1, 2)
    return matched_pairs(counts[:, 0], counts[:, 1])
