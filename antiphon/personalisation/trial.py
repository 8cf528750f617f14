"""What personalisation was worth: error rates round by round and client by client, with tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.personalisation.federation import Federation, Schedule
from antiphon.personalisation.marginal_adaptation import Mixture
from antiphon.personalisation.second_pass import SecondPass, compare
from antiphon.scoring.significance import MatchedPairs
from antiphon.scoring.statistics import Interval, rate_interval, relative_interval

FIRST_PASS, BASELINE, ORACLE = "first pass", "background model", "oracle"
SIGMAS = (0.1, 1.0, 5.0, 10.0, 100.0)  # of table 3
ONE_SIDED = ((0.0, 0.75), (0.75, 0.0))  # α, β: only own words, only shared words
FORMAT = "antiphon-personalisation/1"


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

    folder.mkdir(parents=True, exist_ok=True)
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
    (folder / "results.json").write_text(
        json.dumps(body, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    rates = [{n: c[k] / max(c["words"], 1) for n, c in clients.items()} for k in ("before", "after")]
    ordered = sorted(names, key=lambda name: rates[1][name] - rates[0][name])
    svg = dumbbells(rates[0], rates[1], ordered, "Clients before and after personalisation", wide=False)
    (folder / "clients.svg").write_text(svg, encoding="utf-8")
