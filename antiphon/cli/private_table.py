"""The table of `antiphon personalize --private`: error rates under noise, and what the noise protects."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from antiphon.workflows.personalize_lists import NoiseResults


def private_table(results: NoiseResults, rounds: int) -> Table:
    """Table 4 of the paper: error rates, the paper's ε, and ε for an utterance and for a client."""
    table = Table(
        title=f"noise on the shared words, T = {rounds}; ε of all rounds with its δ, "
        "except in the paper's column",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    columns = ("", "clients", "WER %", "by seed", "gain kept %", "paper: word, round", "utterance", "client")
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    gain = results.background - results.no_noise

    def add(name: str, clients: int, rate: float, seeds: Sequence[float], epsilons: Sequence[str]) -> None:
        kept = f"{100 * (results.background - rate) / gain:.0f}" if gain > 0 else ""
        by_seed = " ".join(f"{100 * each:.2f}" for each in seeds)
        table.add_row(name, f"{clients:,}", f"{100 * rate:.2f}", by_seed, kept, *epsilons)

    add("no noise", results.num_clients, results.no_noise, (), ["∞"] * 3)
    add("own words alone", results.num_clients, results.own_words, (), ["0"] * 3)
    for row in results.rows:
        epsilons = [row.best(unit).short() for unit in ("one word", "one utterance", "one client")]
        num_clients = results.num_clients * row.population
        add(f"{row.name}, ε {row.epsilon:g}", num_clients, row.rate, row.rates, epsilons)
    return table
