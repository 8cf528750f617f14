"""What a personalisation returns, and scores under noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon.personalisation.marginal_adaptation import Mixture
from antiphon.personalisation.private_trial import PrivateRow, PrivateTrial, Protection, read_protection
from antiphon.personalisation.trial import ClientChange, Row, Trial
from antiphon.privacy.samplers import Secure, Seeded
from antiphon.records.files import write_json


@dataclass(frozen=True)
class NoiseSettings:
    """Noise on what the server publishes.

    noise: kinds (paper, laplace or gaussian) with their values of ε, such as "gaussian=2,1".
    cap: the norm of the counts that a client may send: l1 for laplace (100), l2 for gaussian (20).
    populations: for each number, counts as if every client were that many clients with the same words.
    num_seeds: draws of noise to average over.
    secure: noise from the operating system, not from seeds.
    """

    noise: tuple[str, ...]
    cap: float | None = None
    populations: tuple[int, ...] = (1,)
    num_seeds: int = 3
    secure: bool = False

    def __post_init__(self) -> None:
        self.protections()  # refuses unknown noise
        for population in self.populations:
            if population < 1:
                raise ValueError(f"a population must be at least 1, got {population}")

    def protections(self) -> list[tuple[str, Protection, list[float]]]:
        return [read_protection(text, self.cap) for text in self.noise]


@dataclass(frozen=True)
class NoiseResults:
    """Word error rates with noise, without noise, with only own words, and of the background model.

    num_clients: the number of clients that report.
    """

    background: float
    no_noise: float
    own_words: float
    rows: tuple[PrivateRow, ...]
    num_clients: int


@dataclass(frozen=True)
class Personalisation:
    """The settings that were found, and word error rates by number of rounds, by setting and by client."""

    weights: Mapping[str, float]
    mixture: Mixture
    rounds: int
    num_lists: int
    rows: tuple[Row, ...]
    variations: tuple[Row, ...]
    clients: tuple[ClientChange, ...]
    private: NoiseResults | None


def noise_results(trial: Trial, mixture: Mixture, settings: NoiseSettings, out: Path | None) -> NoiseResults:
    """Score the trial again under every noise; write private.json where files are asked for."""
    sources = [Secure() if settings.secure else Seeded(seed) for seed in range(settings.num_seeds)]
    private = PrivateTrial(trial, mixture, sources)
    rows = [
        replace(private, population=population).row(name, protection, epsilon)
        for population in settings.populations
        for name, protection, epsilons in settings.protections()
        for epsilon in epsilons
    ]
    rates = private.error_rate(trial.second_pass.unadapted()), private.error_rate(trial.adapted(mixture))
    own_words = private.own_words()
    if out is not None:
        body = {"background": rates[0], "no_noise": rates[1], "own_words": own_words}
        write_json(out / "private.json", {**body, "rows": [row.to_dict() for row in rows]})
    num_clients = len(trial.federation.clients) + len(trial.federation.earlier)
    return NoiseResults(*rates, own_words, tuple(rows), num_clients)
