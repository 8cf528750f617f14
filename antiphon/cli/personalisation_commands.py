"""`antiphon personalize`: Federated Marginal Personalization on N-best lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import Search, named_numbers, numbers, options_of, whole_numbers
from antiphon.personalisation.trial import BASELINE, ORACLE, ClientChange, Grid, Row
from antiphon.workflows.personalisation_results import NoiseResults, NoiseSettings, Personalisation

Alpha = Annotated[str, typer.Option(help="Weights of the words of all clients to try (α).")]
Beta = Annotated[str, typer.Option(help="Weights of the client's own words to try (β).")]
Lambda = Annotated[str, typer.Option("--lambda", help="Exponents to try (λ).")]
Sigma = Annotated[str, typer.Option(help="Widths of the weights by rank to try (σ).")]
Private = Annotated[
    list[str],
    typer.Option(metavar="NOISE=ε,…", help="Score again with noise: paper, laplace or gaussian. Repeatable."),
]
Cap = Annotated[
    float | None,
    typer.Option(
        help="A cap on the counts of a client: l1 norm for laplace (100), l2 norm for gaussian (20)."
    ),
]
Population = Annotated[
    str, typer.Option(metavar="K,…", help="Count each client as this many clients with the same words.")
]
NoiseSeeds = Annotated[int, typer.Option(min=1, help="Draws of noise to average over.")]
SecureNoise = Annotated[bool, typer.Option(help="Draw noise from the operating system, not from seeds.")]


Lists = Annotated[
    Path | None,
    typer.Argument(
        help="A file of N-best lists with references, in time order (JSON lines, plain or .gz). With "
        "--federation, the server's own lists, on which settings are found; it can be left out."
    ),
]


@options_of(antiphon.personalize, tune_splits="--tune", splits="--split", earlier_splits="--earlier")
def personalize_command(
    *,
    nbest: Lists = None,
    search: Search = [],
    alpha: Alpha = "0,0.25,0.5,0.75",
    beta: Beta = "0,0.25,0.5,0.75",
    lam: Lambda = "0.25,0.5,0.75,1,1.5,2,2.5,3",
    sigma: Sigma = "0.1,1,5",
    private: Private = [],
    cap: Cap = None,
    population: Population = "1",
    noise_seeds: NoiseSeeds = 3,
    secure: SecureNoise = False,
    **options: Any,
) -> None:
    """Personalise language models to every client's words: word error rates by round and by client."""
    terminal.print_in_first_process()
    grids = {"--alpha": alpha, "--beta": beta, "--lambda": lam, "--sigma": sigma}
    grid = Grid(*(numbers(option, text) for option, text in grids.items()))
    populations = whole_numbers("--population", population)
    noise = NoiseSettings(tuple(private), cap, populations, noise_seeds, secure) if private else None
    steps = named_numbers("--search", search, default="1")
    own = {"nbest": nbest, "search": steps, "grid": grid, "noise": noise}
    result = terminal.with_bars(antiphon.personalize, **own, **options)
    if result.rows:
        _print_tables(result)
    if result.rows and options["out"] is not None:
        out = options["out"]
        terminal.console.print(f"wrote {out / 'results.json'} and {out / 'clients.svg'}")


def _print_tables(result: Personalisation) -> None:
    title = f"{result.num_lists:,} lists of {len(result.clients):,} clients; 95 % intervals over clients"
    terminal.console.print(_table(title, result.rows))
    if result.variations:
        terminal.console.print(_table(f"other settings, T = {result.rounds}", result.variations))
    terminal.console.print(_client_table(result.clients))
    if result.private is not None:
        terminal.console.print(_private_table(result.private, result.rounds))


def _table(title: str, rows: Sequence[Row]) -> Table:
    """Error rates, changes from the background model, and the matched-pairs test."""
    table = terminal.number_table(title, "", "WER %", "relative change %", "MAPSSWE p")
    for row in rows:
        untested = row.name in (BASELINE, ORACLE)
        table.add_row(
            row.name,
            terminal.percent(row.wer) or f"{100 * row.rate:.2f}",
            "" if row.name == BASELINE else terminal.percent(row.change),
            "" if untested else ("< 0.0001" if row.test.p < 1e-4 else f"{row.test.p:.4f}"),
        )
    return table


def _client_table(clients: Sequence[ClientChange]) -> Table:
    """Error rates of each client before and after, the greatest gain first."""
    gains = [(client.before - client.after) / max(client.words, 1) for client in clients]
    won, lost = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    title = f"{won} clients win, {lost} lose, {len(gains) - won - lost} stay"
    table = terminal.number_table(title, "client", "words", "before %", "after %", "change")
    for client, _ in sorted(zip(clients, gains, strict=True), key=lambda pair: -pair[1]):
        before, after = (100 * count / max(client.words, 1) for count in (client.before, client.after))
        table.add_row(
            client.name, f"{client.words:,}", f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"
        )
    return table


def _private_table(results: NoiseResults, rounds: int) -> Table:
    """Table 4 of the paper: error rates, the paper's ε, and ε for an utterance and for a client."""
    title = f"noise on the shared words, T = {rounds}; share of the gain that is left\n"
    title += (
        "ε (δ): of a word in one round, as the paper counts; of an utterance and of a client in all rounds"
    )
    columns = ("clients", "WER %", "gain %", "word", "utterance", "client")
    table = terminal.number_table(title, "", *columns)
    gain = results.background - results.no_noise

    def add(name: str, clients: int, rate: float, epsilons: Sequence[str]) -> None:
        kept = f"{100 * (results.background - rate) / gain:.0f}" if gain > 0 else ""
        table.add_row(name, f"{clients:,}", f"{100 * rate:.2f}", kept, *epsilons)

    add("no noise", results.num_clients, results.no_noise, ["∞"] * 3)
    add("own words", results.num_clients, results.own_words, ["0"] * 3)
    for row in results.rows:
        epsilons = [row.best(unit).short() for unit in ("one word", "one utterance", "one client")]
        num_clients = results.num_clients * row.population
        add(f"{row.name}, ε {row.epsilon:g}", num_clients, row.rate, epsilons)
    return table
