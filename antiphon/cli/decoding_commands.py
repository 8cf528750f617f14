"""`antiphon nbest` and `antiphon rescore`: N-best lists by beam search, and ranked again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import Device, Models, OtherCorpus, RunFolder, Search, Split, Weights, num_cores
from antiphon.cli.parsing import named_numbers, named_paths
from antiphon.workflows.rescore_lists import ListScores, Rescoring, describe_weights

ListFile = Annotated[Path, typer.Option(help="The file for the lists: JSON lines; compressed as .gz.")]
Beam = Annotated[int, typer.Option(min=1, help="Hypotheses that the search keeps, and that are listed.")]
NgramModel = Annotated[Path | None, typer.Option(help="An n-gram model that takes part in the search.")]
LmWeight = Annotated[float, typer.Option(help="The weight of ln p(words) of --lm.")]
WordBonus = Annotated[float, typer.Option(help="A bonus for every word, with --lm.")]
LengthNormalisation = Annotated[
    float, typer.Option(help="LAS: divide ln p(tokens) by ((5 + tokens) / 6) to this power.")
]
TokenBonus = Annotated[float, typer.Option(help="LAS: a bonus for every token.")]
Coverage = Annotated[
    float, typer.Option(help="LAS: the weight of ln(attention that a frame has received, at most 1).")
]
TuneSearch = Annotated[
    str,
    typer.Option(
        "--tune", metavar="SPLIT", help="Find --lm-weight, --word-bonus and --coverage on this split."
    ),
]
Workers = Annotated[int, typer.Option(min=1, help="Processes that share the speech.")]
ListFiles = Annotated[
    list[Path],
    typer.Argument(help="N-best lists with references: JSON lines, plain or .gz. Several are merged."),
]
Recognisers = Annotated[
    list[str],
    typer.Option(metavar="[NAME=]RUN", help="A run whose model scores the texts too. Repeatable."),
]
Speech = Annotated[Path | None, typer.Option(help="The corpus of the speech, if not that of the runs.")]
TuneWeights = Annotated[
    str,
    typer.Option(
        "--tune", metavar="SPLIT", help="Find weights on this split; else on all other sessions of each."
    ),
]
ScoredSplit = Annotated[str, typer.Option(help="Score only the lists of this split.")]
Reranked = Annotated[Path | None, typer.Option(help="A file for the lists in their new order.")]


def nbest_command(
    run: RunFolder,
    out: ListFile,
    data: OtherCorpus = None,
    split: Split = "test",
    beam: Beam = 20,
    lm: NgramModel = None,
    lm_weight: LmWeight = 0.5,
    word_bonus: WordBonus = 0.0,
    length_normalisation: LengthNormalisation = 0.0,
    token_bonus: TokenBonus = 0.0,
    coverage: Coverage = 0.0,
    tune_on: TuneSearch = "",
    device: Device = "auto",
    workers: Workers = 1,
) -> None:
    """Decode by beam search with a run's model: N-best lists, their word error rate and their oracle's."""
    with terminal.Terminal() as progress:
        decoding = antiphon.nbest(
            run, out, data=data, split=split, beam=beam, lm=lm, lm_weight=lm_weight, word_bonus=word_bonus,
            length_normalisation=length_normalisation, token_bonus=token_bonus, coverage=coverage,
            tune=tune_on, device=device, num_processes=workers, feature_processes=num_cores(),
            progress=progress, notify=terminal.say,
        )  # fmt: skip
    terminal.console.print(_table(decoding.scores))
    minutes, factor = decoding.speech_seconds / 60, decoding.real_time_factor
    terminal.console.print(f"{minutes:.1f} min of speech, real-time factor {factor:.3f}")
    terminal.console.print(f"wrote {out}")


def rescore_command(
    nbest: ListFiles,
    lm: Models = [],
    recogniser: Recognisers = [],
    data: Speech = None,
    device: Device = "auto",
    weight: Weights = [],
    search: Search = [],
    tune_on: TuneWeights = "",
    split: ScoredSplit = "",
    out: Reranked = None,
) -> None:
    """Rank N-best lists again with other models: word error rates before, after, and of the oracle."""
    with terminal.Terminal() as progress:
        rescoring = antiphon.rescore(
            nbest, lm=named_paths(lm), recognisers=named_paths(recogniser), data=data, device=device,
            weights=named_numbers("--weight", weight), search=named_numbers("--search", search, default="1"),
            tune=tune_on, split=split, out=out, feature_processes=num_cores(), progress=progress,
        )  # fmt: skip
    _print_weights(rescoring)
    terminal.console.print(_table(rescoring.scores))
    if out is not None:
        terminal.console.print(f"wrote {out}")


def _print_weights(rescoring: Rescoring) -> None:
    title, weights = "weights", dict(rescoring.weights)
    if rescoring.leave_one_out:
        title = "weights, found on all"
        terminal.say("each session is scored with weights found on all other sessions")
    elif rescoring.tuned_on:
        title = f"weights, found on {rescoring.tuned_on}"
    if rescoring.sharpness is not None:
        weights["sharpness"] = rescoring.sharpness
    terminal.say(describe_weights(title, weights))


def _table(scores: ListScores) -> Table:
    """Error rates of ways to choose a hypothesis, and how they differ from the first of them."""
    title = f"{scores.num_lists:,} lists, {scores.num_words:,} words"
    title += f"; 95 % intervals over {scores.num_sessions:,} sessions"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "WER %", "change", "S/D/I"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for choice in scores.choices:
        errors = choice.errors
        kinds = f"{errors.substitutions}/{errors.deletions}/{errors.insertions}"
        rate = terminal.percent(choice.rate) or f"{100 * errors.rate:.2f}"
        table.add_row(choice.name, rate, terminal.percent(choice.change), kinds)
    return table
