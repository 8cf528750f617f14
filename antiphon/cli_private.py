"""What `antiphon personalize --private` prints: word error rates under noise, and what the noise protects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from antiphon import screen
from antiphon.decoding.adaptation import Mixture
from antiphon.privacy.noise import Randomness
from antiphon.recipes.personalised import Trial
from antiphon.recipes.private import PrivateRow, PrivateTrial, Protection


def show_private(
    trial: Trial,
    mixture: Mixture,
    protections: Sequence[tuple[str, Protection, Sequence[float]]],
    populations: Sequence[int],
    sources: Sequence[Randomness],
    out: Path | None,
) -> None:
    """The table, and private.json with all claims where files are wanted."""
    private = PrivateTrial(trial, mixture, sources)
    noised = [
        PrivateTrial(trial, mixture, sources, number).row(name, protection, epsilon)
        for number in populations
        for name, protection, epsilons in protections
        for epsilon in epsilons
    ]
    rates = private.error_rate(trial.second_pass.unadapted()), private.error_rate(trial.adapted(mixture))
    own = private.own_words()
    screen.console.print(_table(trial, rates, own, noised))
    if out is not None:
        body = {"background": rates[0], "no_noise": rates[1], "own_words": own}
        text = json.dumps({**body, "rows": [row.to_dict() for row in noised]}, indent=2)
        (out / "private.json").write_text(text + "\n", encoding="utf-8")


def _table(trial: Trial, rates: tuple[float, float], own: float, noised: Sequence[PrivateRow]) -> Table:
    """Table 4: error rates under noise; what the paper says the noise protects, and what it does protect."""
    table = Table(
        title=f"noise on everyone's words, T = {trial.schedule.rounds}; ε of all rounds at the δ beside it, "
        "but for the paper's",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    columns = ("", "clients", "WER %", "by seed", "gain kept %", "paper: word, round", "utterance", "client")
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    number = len(trial.federation.clients) + len(trial.federation.earlier)

    def add(name: str, clients: int, rate: float, seeds: Sequence[float], epsilons: Sequence[str]) -> None:
        kept = f"{100 * (rates[0] - rate) / (rates[0] - rates[1]):.0f}" if rates[0] > rates[1] else ""
        by_seed = " ".join(f"{100 * each:.2f}" for each in seeds)
        table.add_row(name, f"{clients:,}", f"{100 * rate:.2f}", by_seed, kept, *epsilons)

    add("no noise", number, rates[1], (), ["∞"] * 3)
    add("own words alone", number, own, (), ["0"] * 3)
    for row in noised:
        epsilons = [row.best(unit).short() for unit in ("one word", "one utterance", "one client")]
        add(f"{row.name}, ε {row.epsilon:g}", number * row.population, row.rate, row.rates, epsilons)
    return table
