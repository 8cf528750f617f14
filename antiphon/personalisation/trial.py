"""Federated Marginal Personalization on lists: the second pass, its settings, and what it was worth.

Z. Liu and F. Peng, 2020, §3. Error rates are given round by round and client by client, with tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.decoding.rescoring import Lists, first_maxima
from antiphon.personalisation.federation import Federation, Schedule
from antiphon.personalisation.marginal_adaptation import Mixture
from antiphon.records.files import make_folder, write_json, write_text
from antiphon.scoring.error_rate import alignment
from antiphon.scoring.significance import MatchedPairs, error_segments, matched_pairs
from antiphon.scoring.statistics import Interval, rate_interval, relative_interval

FIRST_PASS, BASELINE, ORACLE = "first pass", "background model", "oracle"
SIGMAS = (0.1, 1.0, 5.0, 10.0, 100.0)  # of table 3
ONE_SIDED = ((0.0, 0.75), (0.75, 0.0))  # α, β: only own words, only shared words
FORMAT = "antiphon-personalisation/1"


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
    fewest = second_pass.lists.count(second_pass.unadapted()).total
    for done, sigma in enumerate(grid.sigmas):
        progress(done, len(grid.sigmas))
        history = federation.history(sigma, schedule)
        for mixture in grid.mixtures(sigma, smoothing):
            ratios = federation.ratios(history, mixture)
            for lam in grid.lams:
                errors = second_pass.lists.count(second_pass.best(ratios, lam)).total
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


@dataclass(frozen=True)
class Row:
    """Errors of one way to choose hypotheses, compared with the background model.

    wer, change: with intervals over clients; the change is relative. None with fewer than two clients.
    """

    name: str
    rate: float
    wer: Interval | None
    change: Interval | None
    test: MatchedPairs


@dataclass(frozen=True)
class Trial:
    """Lists that are scored with settings that were found on other lists."""

    federation: Federation
    second_pass: SecondPass
    schedule: Schedule

    def choices(self, mixture: Mixture, rounds: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the rows of the chosen hypotheses: first pass, background model, each T, oracle."""
        lists = self.second_pass.lists
        choices = {FIRST_PASS: lists.first(), BASELINE: self.second_pass.unadapted()}
        for number in rounds:
            choices[f"T = {number}"] = self.adapted(mixture, replace(self.schedule, rounds=number))
        return {**choices, ORACLE: lists.oracle()}

    def adapted(self, mixture: Mixture, schedule: Schedule | None = None) -> np.ndarray:
        history = self.federation.history(mixture.sigma, schedule or self.schedule)
        return self.second_pass.best(self.federation.ratios(history, mixture), mixture.lam)

    def variations(self, mixture: Mixture) -> dict[str, np.ndarray]:
        """Return the choices of table 3: other σ, and only shared or only own words; λ as it was found."""
        mixtures = [replace(mixture, sigma=sigma) for sigma in dict.fromkeys((mixture.sigma, *SIGMAS))]
        mixtures += [replace(mixture, alpha=alpha, beta=beta) for alpha, beta in ONE_SIDED]
        return {described(each): self.adapted(each) for each in mixtures}

    def by_client(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the errors and words of each client, in the order of `federation.clients`."""
        errors = self.second_pass.lists.errors[rows]
        groups = [errors[list(places)].sum(axis=0) for places in self.federation.clients.values()]
        table = np.array(groups)
        return table[:, :3].sum(axis=1), table[:, 3]

    def row(self, name: str, rows: np.ndarray, baseline: np.ndarray) -> Row:
        errors, words = self.by_client(rows)
        before, _ = self.by_client(baseline)
        return Row(
            name,
            float(errors.sum() / words.sum()),
            rate_interval(errors, words),
            relative_interval(errors, before),
            compare(self.second_pass.lists, baseline, rows),
        )

    def rows(self, choices: Mapping[str, np.ndarray], baseline: np.ndarray) -> list[Row]:
        return [self.row(name, rows, baseline) for name, rows in choices.items()]


def described(mixture: Mixture) -> str:
    """
    >>> described(Mixture(0.5, 0.25, 1.0, 5.0))
    'α 0.5, β 0.25, λ 1, σ 5'
    """
    return f"α {mixture.alpha:g}, β {mixture.beta:g}, λ {mixture.lam:g}, σ {mixture.sigma:g}"


def write_results(
    folder: Path, trial: Trial, rows: Sequence[Row], mixture: Mixture, before: np.ndarray, after: np.ndarray
) -> None:
    """Write results.json (all figures) and clients.svg (error rates of every client before and after)."""
    # Imported here because matplotlib takes a second to import.
    from antiphon.report.speaker_plots import dumbbells

    make_folder(folder)
    names = list(trial.federation.clients)
    errors, words = trial.by_client(before)
    later, _ = trial.by_client(after)
    clients = {
        name: {"words": int(said), "before": int(one), "after": int(other)}
        for name, said, one, other in zip(names, words, errors, later, strict=True)
    }
    body: dict[str, Any] = {
        "format": FORMAT,
        "weights": dict(trial.second_pass.weights),
        "adapted": trial.second_pass.adapted,
        "mixture": asdict(mixture),
        "agreement": trial.federation.agreement,
        "schedule": asdict(trial.schedule),
        "rows": [asdict(row) for row in rows],
        "clients": clients,
    }
    write_json(folder / "results.json", body)
    rates = [{n: c[k] / max(c["words"], 1) for n, c in clients.items()} for k in ("before", "after")]
    ordered = sorted(names, key=lambda name: rates[1][name] - rates[0][name])
    svg = dumbbells(rates[0], rates[1], ordered, "Clients before and after personalisation", wide=False)
    write_text(folder / "clients.svg", svg)
