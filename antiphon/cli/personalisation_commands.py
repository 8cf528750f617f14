"""`antiphon personalize`: Federated Marginal Personalization on N-best lists."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import Models, Resume, Search, Weights
from antiphon.cli.parsing import named_numbers, named_paths, numbers, whole_numbers
from antiphon.cli.private_table import private_table
from antiphon.personalisation.second_pass import Grid
from antiphon.personalisation.trial import BASELINE, ORACLE, Row
from antiphon.pools.rendezvous import find_rank
from antiphon.workflows.personalize_lists import ClientChange, NoiseSettings, Personalisation

Lists = Annotated[Path, typer.Argument(help="N-best lists with references, in time order: JSON lines.")]
Background = Annotated[
    list[Path],
    typer.Option(metavar="TEXT", help="A text file that the background model was trained on. Repeatable."),
]
Adapt = Annotated[
    str, typer.Option(metavar="NAME", help="What is adapted: a model, or a part of the lists such as lm.")
]
Client = Annotated[str, typer.Option(help="What a client is: meeting, session or speaker.")]
Rounds = Annotated[
    str, typer.Option(metavar="T,…", help="Numbers of rounds to score; the last decides the settings.")
]
TuneSplits = Annotated[
    list[str], typer.Option("--tune", metavar="SPLIT", help="Find settings on this split. Repeatable.")
]
Splits = Annotated[list[str], typer.Option(metavar="SPLIT", help="Score this split. Repeatable.")]
Earlier = Annotated[
    list[str],
    typer.Option(metavar="SPLIT", help="Clients that took part before and go on reporting. Repeatable."),
]
Alpha = Annotated[str, typer.Option(help="Weights of the words of all clients to try (α).")]
Beta = Annotated[str, typer.Option(help="Weights of the client's own words to try (β).")]
Lambda = Annotated[str, typer.Option("--lambda", help="Exponents to try (λ).")]
Sigma = Annotated[str, typer.Option(help="Widths of the weights by rank to try (σ).")]
Smoothing = Annotated[float, typer.Option(help="The share of the background in own and shared words.")]
Agreement = Annotated[
    float, typer.Option(min=0, help="Words count by the share of hypotheses that have them, to this power.")
]
Depth = Annotated[int, typer.Option(min=1, help="The number of hypotheses of a list that are used.")]
EveryUtterance = Annotated[
    bool, typer.Option(help="Use a client's own words at once, not only after a round.")
]
Cohort = Annotated[int, typer.Option(min=0, help="Clients that report in a round; 0 for all.")]
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
    str, typer.Option(metavar="K,…", help="Counts as if each client were this many with the same words.")
]
NoiseSeeds = Annotated[int, typer.Option(min=1, help="Draws of noise to average over.")]
SecureNoise = Annotated[bool, typer.Option(help="Draw noise from the operating system, not from seeds.")]
Folder = Annotated[
    Path | None, typer.Option(help="A folder for results.json, clients.svg and the journals of rounds.")
]
Workers = Annotated[int, typer.Option(min=1, help="Processes that share the clients of a round.")]


def personalize_command(
    nbest: Lists,
    background: Background,
    lm: Models = [],
    adapt: Adapt = "",
    client: Client = "meeting",
    rounds: Rounds = "1,2,5,10",
    tune_on: TuneSplits = [],
    split: Splits = [],
    earlier: Earlier = [],
    weight: Weights = [],
    search: Search = [],
    alpha: Alpha = "0,0.25,0.5,0.75",
    beta: Beta = "0,0.25,0.5,0.75",
    lam: Lambda = "0.25,0.5,0.75,1,1.5,2,2.5,3",
    sigma: Sigma = "0.1,1,5",
    smoothing: Smoothing = 0.1,
    agreement: Agreement = 0.0,
    depth: Depth = 20,
    every_utterance: EveryUtterance = False,
    cohort: Cohort = 0,
    private: Private = [],
    cap: Cap = None,
    population: Population = "1",
    noise_seeds: NoiseSeeds = 3,
    secure: SecureNoise = False,
    out: Folder = None,
    resume: Resume = False,
    workers: Workers = 1,
) -> None:
    """Personalise language models to every client's words: word error rates by round and by client."""
    process = find_rank(os.environ)
    terminal.be_silent(process is not None and process.rank > 0)
    grids = {"--alpha": alpha, "--beta": beta, "--lambda": lam, "--sigma": sigma}
    grid = Grid(*(numbers(option, text) for option, text in grids.items()))
    populations = whole_numbers("--population", population)
    noise = NoiseSettings(tuple(private), cap, populations, noise_seeds, secure) if private else None
    with terminal.Terminal() as progress:
        result = antiphon.personalize(
            nbest, background, lm=named_paths(lm), adapt=adapt, client=client, grid=grid,
            rounds=whole_numbers("--rounds", rounds), tune_splits=tune_on, splits=split,
            earlier_splits=earlier, weights=named_numbers("--weight", weight),
            search=named_numbers("--search", search, default="1"), smoothing=smoothing, agreement=agreement,
            depth=depth, every_utterance=every_utterance, cohort=cohort, noise=noise, out=out,
            resume=resume, num_processes=workers, progress=progress, notify=terminal.say,
        )  # fmt: skip
    _print_tables(result)
    if out is not None:
        terminal.console.print(f"wrote {out / 'results.json'} and {out / 'clients.svg'}")


def _print_tables(result: Personalisation) -> None:
    title = f"{result.num_lists:,} lists of {len(result.clients):,} clients; 95 % intervals over clients"
    terminal.console.print(_table(title, result.rows))
    terminal.console.print(_table(f"other settings, T = {result.rounds}", result.variations))
    terminal.console.print(_client_table(result.clients))
    if result.private is not None:
        terminal.console.print(private_table(result.private, result.rounds))


def _table(title: str, rows: Sequence[Row]) -> Table:
    """Error rates, changes from the background model, and the matched-pairs test."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "WER %", "relative change %", "MAPSSWE p"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
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
    table = Table(title=f"{won} clients win, {lost} lose, {len(gains) - won - lost} stay", box=SIMPLE_HEAD)
    for column in ("client", "words", "before %", "after %", "change"):
        table.add_column(column, justify="left" if column == "client" else "right", no_wrap=True)
    for client, _ in sorted(zip(clients, gains, strict=True), key=lambda pair: -pair[1]):
        before, after = (100 * count / max(client.words, 1) for count in (client.before, client.after))
        table.add_row(
            client.name, f"{client.words:,}", f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"
        )
    return table
