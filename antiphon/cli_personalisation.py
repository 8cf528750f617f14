"""`antiphon personalize`: the protocol of Federated Marginal Personalization on N-best lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from antiphon import screen
from antiphon.cli_decoding import (
    columns_for,
    listed,
    named_model,
    numbers_of,
    of_split,
    percent,
)
from antiphon.cli_lm import sentences_of
from antiphon.cli_private import show_private
from antiphon.decoding.adaptation import Mixture
from antiphon.decoding.hypothesis import read_nbest
from antiphon.decoding.rescoring import Lists, tabulate, tune
from antiphon.privacy.noise import Secure, Seeded
from antiphon.recipes.personalisation import (
    Federation,
    Grid,
    Schedule,
    SecondPass,
    background_of,
    search_grid,
)
from antiphon.recipes.personalised import BASELINE, ORACLE, Row, Trial, described, write_results
from antiphon.recipes.private import read_protection


def personalize_command(
    nbest: Annotated[Path, typer.Argument(help="N-best lists with references, in time order: JSON lines.")],
    background: Annotated[
        list[Path],
        typer.Option(metavar="TEXT", help="Text that the background model was made of. Repeatable."),
    ],
    lm: Annotated[
        list[str], typer.Option(metavar="[NAME=]MODEL", help="The background model; see `antiphon rescore`.")
    ] = [],
    adapt: Annotated[
        str, typer.Option(metavar="NAME", help="What is adapted: a model, or a part of the lists such as lm.")
    ] = "",
    client: Annotated[str, typer.Option(help="Who is a client: meeting, session or speaker.")] = "meeting",
    rounds: Annotated[
        str, typer.Option(metavar="T,…", help="Rounds; the last decides the settings.")
    ] = "1,2,5,10",
    tune_on: Annotated[
        list[str], typer.Option("--tune", metavar="SPLIT", help="Where settings are found.")
    ] = [],
    split: Annotated[list[str], typer.Option(metavar="SPLIT", help="Whose lists are scored.")] = [],
    earlier: Annotated[
        list[str], typer.Option(metavar="SPLIT", help="Clients who were there before, and go on reporting.")
    ] = [],
    weight: Annotated[
        list[str], typer.Option(metavar="NAME=VALUE", help="A fixed weight of a model or a part.")
    ] = [],
    search: Annotated[list[str], typer.Option(metavar="NAME[=STEP]", help="A weight to search for.")] = [],
    alpha: Annotated[str, typer.Option(help="Weights of everyone's words to try.")] = "0,0.25,0.5,0.75",
    beta: Annotated[str, typer.Option(help="Weights of the client's own words to try.")] = "0,0.25,0.5,0.75",
    lam: Annotated[str, typer.Option("--lambda", help="Exponents to try.")] = "0.25,0.5,0.75,1,1.5,2,2.5,3",
    sigma: Annotated[str, typer.Option(help="Widths of the weights by rank to try.")] = "0.1,1,5",
    smoothing: Annotated[float, typer.Option(help="Share of the background in both.")] = 0.1,
    agreement: Annotated[
        float,
        typer.Option(min=0, help="Words count by the share of hypotheses that have them, to this power."),
    ] = 0.0,
    depth: Annotated[int, typer.Option(min=1, help="Hypotheses of a list that are used.")] = 20,
    every_utterance: Annotated[
        bool, typer.Option(help="A client's own words count at once, not only after the round.")
    ] = False,
    cohort: Annotated[int, typer.Option(min=0, help="Clients that report in a round; 0 for all.")] = 0,
    private: Annotated[
        list[str],
        typer.Option(
            metavar="NOISE=ε,…", help="Once more under noise: paper, laplace or gaussian. Repeatable."
        ),
    ] = [],
    cap: Annotated[
        float | None, typer.Option(help="Words a client may add: l1 for laplace (100), l2 for gaussian (20).")
    ] = None,
    population: Annotated[
        str, typer.Option(metavar="K,…", help="Noise as if each client were so many who speak alike.")
    ] = "1",
    noise_seeds: Annotated[int, typer.Option(min=1, help="Draws of noise to average over.")] = 3,
    secure: Annotated[bool, typer.Option(help="Noise of the operating system, not of seeds.")] = False,
    out: Annotated[Path | None, typer.Option(help="A folder for results.json and clients.svg.")] = None,
) -> None:
    """Language models that learn every client's words: word error rates round by round, client by client."""
    grid = Grid(*(_floats(name, text) for name, text in
                  (("--alpha", alpha), ("--beta", beta), ("--lambda", lam), ("--sigma", sigma))))  # fmt: skip
    numbers = sorted(_wholes("--rounds", rounds))
    schedule = Schedule(numbers[-1], every_utterance, cohort)
    protections = [read_protection(text, cap) for text in private]
    populations = [int(number) for number in _floats("--population", population)]
    models = dict(named_model(text) for text in lm)
    adapt = adapt or next(iter(models), "")
    if not adapt:
        raise ValueError("there is nothing to adapt: name a model (--lm) or a part of the lists (--adapt lm)")
    entries = list(read_nbest(nbest, depth))
    unigram = background_of(sentences_of(background), entries)
    lists = tabulate(entries, models)
    heldout, scored = (_of_splits(lists, splits) for splits in (tune_on, split))
    before = _of_splits(lists, earlier).entries if earlier else ()
    columns = columns_for(list(models), numbers_of("--weight", weight), search)
    weights = tune(heldout, columns)
    if {entry.id for entry in heldout.entries} & {entry.id for entry in scored.entries}:
        screen.console.print(
            "[yellow]settings are found on lists that are scored: error rates flatter them[/]"
        )
    screen.console.print(listed("weights of the second pass", weights))
    if not weights.get(adapt):
        screen.console.print(f"[yellow]{adapt} has no weight: adapting it changes nothing[/]")

    def federation_of(lists: Lists) -> Federation:
        return replace(Federation.of(lists.entries, unigram, client, before), agreement=agreement)

    with screen.bar("settings") as progress:
        mixture = search_grid(
            federation_of(heldout),
            SecondPass(heldout, weights, adapt),
            schedule,
            grid,
            smoothing,
            progress,
        )
    screen.console.print(f"settings: {described(mixture)}")
    trial = Trial(federation_of(scored), SecondPass(scored, weights, adapt), schedule)
    _show(trial, mixture, numbers, out)
    if protections:
        sources = [Secure() if secure else Seeded(seed) for seed in range(noise_seeds)]
        show_private(trial, mixture, protections, populations, sources, out)


def _show(trial: Trial, mixture: Mixture, rounds: Sequence[int], out: Path | None) -> None:
    """Tables of rounds, of other settings and of clients; files where they are wanted."""
    choices = trial.choices(mixture, rounds)
    baseline, last = choices[BASELINE], choices[f"T = {rounds[-1]}"]
    rows, others = trial.rows(choices, baseline), trial.rows(trial.variations(mixture), baseline)
    num_lists, num_clients = len(trial.federation.entries), len(trial.federation.clients)
    title = f"{num_lists:,} lists of {num_clients:,} clients; 95 % intervals over clients"
    screen.console.print(_table(title, rows))
    screen.console.print(_table(f"other settings, T = {rounds[-1]}", others))
    screen.console.print(_client_table(trial, baseline, last))
    if out is not None:
        write_results(out, trial, [*rows, *others], mixture, baseline, last)
        screen.console.print(f"wrote {out / 'results.json'} and {out / 'clients.svg'}")


def _floats(option: str, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} takes numbers such as 0.5 or 0.25,0.5, not {text!r}") from None
    return found


def _wholes(option: str, text: str) -> list[int]:
    numbers = _floats(option, text)
    if any(number != int(number) for number in numbers):
        raise ValueError(f"{option} takes whole numbers, not {text!r}")
    return [int(number) for number in numbers]


def _of_splits(lists: Lists, splits: Sequence[str]) -> Lists:
    for split in splits:
        of_split(lists, split)  # refuses one that is not there
    places = [place for place, entry in enumerate(lists.entries) if not splits or entry.split in splits]
    return lists.of(places)


def _table(title: str, rows: Sequence[Row]) -> Table:
    """Error rates, change against the background model, and the matched-pairs test of it."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "WER %", "relative change %", "MAPSSWE p"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        same = row.name in (BASELINE, ORACLE)
        table.add_row(
            row.name,
            percent(row.wer) or f"{100 * row.rate:.2f}",
            "" if row.name == BASELINE else percent(row.change),
            "" if same else ("< 0.0001" if row.test.p < 1e-4 else f"{row.test.p:.4f}"),
        )
    return table


def _client_table(trial: Trial, before: np.ndarray, after: np.ndarray) -> Table:
    """Who wins and who loses, the greatest gain first."""
    errors, words = trial.by_client(before)
    later, _ = trial.by_client(after)
    gains = (errors - later) / np.maximum(words, 1)
    won, lost = int((gains > 0).sum()), int((gains < 0).sum())
    table = Table(title=f"{won} clients win, {lost} lose, {len(gains) - won - lost} stay", box=SIMPLE_HEAD)
    for column in ("client", "words", "before %", "after %", "change"):
        table.add_column(column, justify="left" if column == "client" else "right", no_wrap=True)
    names = list(trial.federation.clients)
    for place in np.argsort(-gains, kind="stable"):
        rates = 100 * errors[place] / max(words[place], 1), 100 * later[place] / max(words[place], 1)
        shown = [f"{rates[0]:.2f}", f"{rates[1]:.2f}", f"{rates[1] - rates[0]:+.2f}"]
        table.add_row(names[place], f"{words[place]:,}", *shown)
    return table
