"""`antiphon nbest` and `antiphon rescore`: lists by beam search, and ranked anew."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from antiphon import screen
from antiphon.decoding.expected_errors import Apart
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.hypothesis import WORDS, NBest, read_nbest, write_nbest
from antiphon.decoding.rescoring import (
    SCORE,
    Column,
    Listener,
    Lists,
    best_leaving_out,
    reranked,
    tabulate,
    tune,
    tune_leaving_out,
    united,
)
from antiphon.decoding.tuning import Ranking
from antiphon.models.ngram import SentenceModel
from antiphon.report.statistics import Interval, difference_interval, rate_interval

RESCORED, EXPECTED = "rescored", "least risk"  # of all texts; fewest expected errors
DEPTHS = (5, 20, 100)  # of lists, at which their oracles are looked at


def rescore_command(
    nbest: Annotated[
        list[Path],
        typer.Argument(help="N-best lists with references, JSON lines, plain or .gz; several become one."),
    ],
    lm: Annotated[
        list[str],
        typer.Option(metavar="[NAME=]MODEL", help="An ARPA file, or a folder of `antiphon lm`. Repeatable."),
    ] = [],
    recogniser: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]RUN", help="The folder of a run whose model hears the texts too. Repeatable."
        ),
    ] = [],
    data: Annotated[Path | None, typer.Option(help="Their speech, if not in the runs' own corpus.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or cuda:1 and so on.")] = "auto",
    weight: Annotated[
        list[str],
        typer.Option(metavar="NAME=VALUE", help="A fixed weight of a model or a part; score=1 if none is."),
    ] = [],
    search: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=STEP]", help="A weight to search for; else the models without one, and words."
        ),
    ] = [],
    tune_on: Annotated[
        str, typer.Option("--tune", metavar="SPLIT", help="Search here; else on all other sessions of each.")
    ] = "",
    split: Annotated[str, typer.Option(help="Score the lists of this split only.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the lists, best first, with all parts.")] = None,
) -> None:
    """Rank N-best lists anew with other models: word error rates before, after, and of the oracle."""
    entries = united([list(read_nbest(path)) for path in nbest])
    for wanted in filter(None, (split, tune_on)):
        check_split(entries, wanted)
    models = dict(named_model(text) for text in lm)
    hearers = dict(named_hearer(text, data, device) for text in recogniser)
    columns = columns_for([*models, *hearers], numbers_of("--weight", weight), search)
    lists = tabulate(entries, models, hearers)
    scored = of_split(lists, split) if split else lists
    if tune_on:
        tuned = of_split(lists, tune_on)
        weights = tune(tuned, columns)
        sharpness = Apart.measure(tuned).tune(weights)
        expected = Apart.measure(scored).best(weights, sharpness)
        chosen = {RESCORED: scored.best(weights), EXPECTED: expected}
        screen.console.print(listed(f"weights, found on {tune_on}", {**weights, "sharpness": sharpness}))
    elif all(column.step == 0 for column in columns):
        weights = {column.name: column.weight for column in columns}
        chosen = {RESCORED: scored.best(weights)}
        screen.console.print(listed("weights", weights))
    else:
        by_session = tune_leaving_out(scored, columns)
        expected = Apart.measure(scored).best_leaving_out(by_session)
        chosen = {RESCORED: best_leaving_out(scored, by_session), EXPECTED: expected}
        weights = tune(scored, columns)
        screen.console.print(f"each session with weights found on the {len(by_session) - 1} others")
        screen.console.print(listed("weights, found on all", weights))
    rows = {"first pass": scored.first(), **chosen, **_oracles(scored), "oracle": scored.oracle()}
    screen.console.print(_table(scored, rows))
    if out is not None:
        write_nbest(out, reranked(lists, weights))  # of all splits: they may be ranked again
        screen.console.print(f"wrote {out}")


def named_model(text: str) -> tuple[str, SentenceModel]:
    from antiphon.models.neural_lm import load_sentence_model

    name, path = named_path(text)
    return name, load_sentence_model(path)


def named_hearer(text: str, data: Path | None, device: str) -> tuple[str, Listener]:
    """A run's model, to say how likely texts are in their speech."""
    from antiphon.recipes.listing import Hearer

    name, path = named_path(text)
    with screen.bar("features") as progress:
        hearer = Hearer.open(path, data, device, progress)

    def listen(entries: Sequence[NBest]) -> list[float]:
        with screen.bar(name) as progress:
            return hearer.score_lists(entries, progress)

    return name, listen


def named_path(text: str) -> tuple[str, Path]:
    """A path with a name before it, or its last part."""
    name, equals, path = text.partition("=")
    path = path if equals else text
    return name if equals else Path(path).name.split(".")[0], Path(path)


def columns_for(models: Sequence[str], weights: Mapping[str, float], search: Sequence[str]) -> list[Column]:
    """Fixed weights do not step; one that is searched for starts where it was given, or at zero."""
    free = [name for name in models if name not in weights]
    searched = _steps(search) if search else dict.fromkeys([*free, *([WORDS] if free else [])], 1.0)
    start = {**({} if weights.keys() - searched.keys() else {SCORE: 1.0}), **weights}
    names = dict.fromkeys([*start, *searched])
    return [
        Column(
            name, start.get(name, 0.0), searched.get(name, 0.0), lowest=0.0 if name in models else -math.inf
        )
        for name in names
    ]


def _steps(search: Sequence[str]) -> dict[str, float]:
    return numbers_of("--search", [text if "=" in text else f"{text}=1" for text in search])


def numbers_of(option: str, texts: Sequence[str]) -> dict[str, float]:
    numbers = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            numbers[name] = float(value)
        except ValueError:
            raise ValueError(
                f"{option} takes a name and a number, such as {name or 'books'}=0.5, not {text!r}"
            ) from None
    return numbers


def check_split(entries: Sequence[NBest], split: str) -> None:
    """Refuses a split that no list is of."""
    there = sorted({str(entry.split) for entry in entries})
    if split not in there:
        raise ValueError(f"no lists of split {split!r}: there are {', '.join(there)}")


def of_split(lists: Lists, split: str) -> Lists:
    check_split(lists.entries, split)
    return lists.of([place for place, entry in enumerate(lists.entries) if entry.split == split])


def _table(lists: Lists, choices: Mapping[str, np.ndarray]) -> Table:
    """Error rates of these choices of a hypothesis each, and how they differ from the first of them."""
    sessions = lists.sessions
    num_words = lists.count(lists.first()).length
    num_sessions = len(set(sessions))
    title = f"{len(sessions):,} lists, {num_words:,} words; 95 % intervals over {num_sessions:,} sessions"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "WER %", "change", "S/D/I"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    beginning = next(iter(choices))
    first = _per_session(lists, choices[beginning], sessions)
    for name, rows in choices.items():
        errors, counts = lists.count(rows), _per_session(lists, rows, sessions)
        kinds = f"{errors.substitutions}/{errors.deletions}/{errors.insertions}"
        change = "" if name == beginning else percent(difference_interval(counts[0], first[0], counts[1]))
        rate = percent(rate_interval(*counts)) or f"{100 * errors.rate:.2f}"
        table.add_row(name, rate, change, kinds)
    return table


def _oracles(lists: Lists) -> dict[str, np.ndarray]:
    """At several depths, as far as they are less than the whole."""
    deepest = int(np.diff(lists.starts).max())
    return {f"oracle of {depth}": lists.oracle(depth) for depth in DEPTHS if depth < deepest}


def _per_session(lists: Lists, rows: np.ndarray, sessions: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Errors and words of each session."""
    place = {session: number for number, session in enumerate(dict.fromkeys(sessions))}
    numbers = [place[session] for session in sessions]
    wrong = np.bincount(numbers, weights=lists.errors[rows, :3].sum(axis=1))
    return wrong, np.bincount(numbers, weights=lists.errors[rows, 3])


def percent(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{100 * interval.estimate:.2f} [{100 * interval.low:.2f}, {100 * interval.high:.2f}]"


def listed(title: str, weights: Mapping[str, float]) -> str:
    return f"{title}: " + ", ".join(f"{name} {value:g}" for name, value in weights.items())


def nbest_command(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run, such as out/dga.")],
    out: Annotated[Path, typer.Option(help="The lists: JSON lines, packed if the name ends in .gz.")],
    data: Annotated[Path | None, typer.Option(help="Another corpus than the run's own.")] = None,
    split: Annotated[str, typer.Option(help="Whose speech.")] = "test",
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses kept at any time, and listed.")] = 20,
    lm: Annotated[Path | None, typer.Option(help="An n-gram model that takes part in the search.")] = None,
    lm_weight: Annotated[float, typer.Option(help="What its ln p(words) weighs.")] = 0.5,
    word_bonus: Annotated[float, typer.Option(help="What every word adds to the score, with --lm.")] = 0.0,
    length_normalisation: Annotated[
        float, typer.Option(help="LAS: divide ln p(tokens) by ((5 + tokens) / 6) to this power.")
    ] = 0.0,
    token_bonus: Annotated[float, typer.Option(help="LAS: what every token adds to the score.")] = 0.0,
    coverage: Annotated[
        float, typer.Option(help="LAS: what ln(attention a frame has had, at most 1) weighs.")
    ] = 0.0,
    tune_on: Annotated[
        str,
        typer.Option(
            "--tune", metavar="SPLIT", help="Search for --lm-weight, --word-bonus, --coverage here."
        ),
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or cuda:1 and so on.")] = "auto",
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the speech.")] = 1,
) -> None:
    """Beam search with a run's model: N-best lists, their word error rate, and that of the oracle."""
    from antiphon.decoding.attention_beam import Penalties
    from antiphon.decoding.search import beam_for
    from antiphon.models.arpa import load_ngram
    from antiphon.recipes.listing import Hearer

    with screen.bar("features") as progress:
        hearer = Hearer.open(run, data, device, progress)
    fusion = Fusion(load_ngram(lm), lm_weight, word_bonus) if lm is not None else None
    ranking = Ranking(fusion, Penalties(length_normalisation, token_bonus, coverage))
    beam_for(hearer.recognizer.model, beam, ranking.fusion, ranking.penalties)  # refuses before any work
    indices = hearer.store.where(split=split)
    with hearer.in_processes(workers, fusion) as hearers:
        if tune_on:
            ranking = hearers.tuned(ranking, hearer.store.where(split=tune_on), told=_tell_trial)
            screen.console.print(listed(f"weights, found on {tune_on}", ranking.weights))
        began = time.perf_counter()
        with screen.bar("search") as progress:
            found = list(hearers.nbest(indices, beam, ranking, progress))
        seconds = time.perf_counter() - began
    write_nbest(out, found)
    lists = tabulate(found, {})
    rows = {"best": lists.first(), **_oracles(lists), "oracle": lists.oracle()}
    screen.console.print(_table(lists, rows))
    speech = float(hearer.store.seconds[indices].sum())
    screen.console.print(f"{speech / 60:.1f} min of speech, real-time factor {seconds / speech:.3f}")
    screen.console.print(f"wrote {out}")


def _tell_trial(tried: Ranking, errors: int) -> None:
    screen.console.print(listed(f"{errors:,} errors", tried.weights))
