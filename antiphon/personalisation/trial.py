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
from antiphon.personalisation.federation import Federation
from antiphon.personalisation.marginal_adaptation import Mixture
from antiphon.personalisation.schedule import Schedule
from antiphon.records.files import make_folder, write_json, write_text
from antiphon.scoring.error_rate import alignment
from antiphon.scoring.significance import MatchedPairs, error_segments, pairs_of_sums
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
        return first_maxima(self.totals(ratios, lam), self.lists.starts)

    def totals(self, ratios: np.ndarray, lam: float) -> np.ndarray:
        """Return the score of every hypothesis, with Σ ln(g/u) of every hypothesis."""
        adapted = self.weights.get(self.adapted, 0.0) * lam * ratios
        return self.lists.scores(self.weights) + adapted

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

    def only(self, smoothing: float) -> Mixture | None:
        """Return the settings of a grid with one point; None if there are several to compare."""
        values = (self.alphas, self.betas, self.lams, self.sigmas)
        if any(len(each) != 1 for each in values):
            return None
        alpha, beta, lam, sigma = (each[0] for each in values)
        return Mixture(alpha, beta, lam, sigma, smoothing)

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


def compared(lists: Lists, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the sums of the matched-pairs test on two choices of hypotheses (rows) for the same lists.

    They are the number of segments with errors, and the sums of their differences and of the squares.
    """
    texts = [hypothesis.text for entry in lists.entries for hypothesis in entry.hypotheses]
    differences = [
        two - one
        for entry, first, second in zip(lists.entries, before, after, strict=True)
        for one, two in _segments(entry.reference or "", texts[first], texts[second])
    ]
    counts = np.array(differences, dtype=np.int64)
    return np.array([len(counts), counts.sum(), (counts**2).sum()])


def _segments(reference: str, first: str, second: str) -> list[tuple[int, int]]:
    said = reference.split()
    return error_segments(alignment(said, first.split()), alignment(said, second.split()))


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


def row_of(name: str, errors: np.ndarray, before: np.ndarray, words: np.ndarray, sums: np.ndarray) -> Row:
    """Return a row from the errors of clients, those of the background model, and their words [clients].

    sums: those of the matched-pairs test (`compared`).
    """
    return Row(
        name,
        float(errors.sum() / words.sum()),
        rate_interval(errors, words),
        relative_interval(errors, before),
        pairs_of_sums(int(sums[0]), float(sums[1]), float(sums[2])),
    )


@dataclass(frozen=True)
class ClientChange:
    """One client: its words, and its word errors with the background model and after all rounds."""

    name: str
    words: int
    before: int
    after: int


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
        return row_of(name, errors, before, words, compared(self.second_pass.lists, baseline, rows))

    def rows(self, choices: Mapping[str, np.ndarray], baseline: np.ndarray) -> list[Row]:
        return [self.row(name, rows, baseline) for name, rows in choices.items()]

    def changes(self, before: np.ndarray, after: np.ndarray) -> list[ClientChange]:
        errors, words = self.by_client(before)
        later, _ = self.by_client(after)
        counts = zip(self.federation.clients, words.tolist(), errors.tolist(), later.tolist(), strict=True)
        return [ClientChange(*count) for count in counts]

    def notes(self, mixture: Mixture) -> dict[str, Any]:
        """Return the settings for results.json."""
        return result_notes(
            self.second_pass.weights,
            self.second_pass.adapted,
            mixture,
            self.federation.agreement,
            self.schedule,
        )


def result_notes(
    weights: Mapping[str, float], adapted: str, mixture: Mixture, agreement: float, schedule: Schedule
) -> dict[str, Any]:
    """Return settings for results.json."""
    return {
        "weights": dict(weights),
        "adapted": adapted,
        "mixture": asdict(mixture),
        "agreement": agreement,
        "schedule": asdict(schedule),
    }


def described(mixture: Mixture) -> str:
    """
    >>> described(Mixture(0.5, 0.25, 1.0, 5.0))
    'α 0.5, β 0.25, λ 1, σ 5'
    """
    return f"α {mixture.alpha:g}, β {mixture.beta:g}, λ {mixture.lam:g}, σ {mixture.sigma:g}"


def write_results(
    folder: Path, notes: Mapping[str, Any], rows: Sequence[Row], changes: Sequence[ClientChange]
) -> None:
    """Write results.json (all figures) and clients.svg (error rates of every client before and after)."""
    # Imported here because matplotlib takes a second to import.
    from antiphon.report.speaker_plots import dumbbells

    make_folder(folder)
    clients = {c.name: {"words": c.words, "before": c.before, "after": c.after} for c in changes}
    body = {"format": FORMAT, **notes, "rows": [asdict(row) for row in rows], "clients": clients}
    write_json(folder / "results.json", body)
    rates = [{n: c[k] / max(c["words"], 1) for n, c in clients.items()} for k in ("before", "after")]
    ordered = sorted(clients, key=lambda name: rates[1][name] - rates[0][name])
    svg = dumbbells(rates[0], rates[1], ordered, "Clients before and after personalisation", wide=False)
    write_text(folder / "clients.svg", svg)
