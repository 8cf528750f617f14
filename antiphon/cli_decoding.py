"""`antiphon lm ngram`, `antiphon lm train` and `antiphon rescore`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from antiphon import screen
from antiphon.data.sentences import read_sentences
from antiphon.data.tokens import UnigramConfig
from antiphon.data.words import WordsConfig
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.hypothesis import WORDS, read_nbest, write_nbest
from antiphon.decoding.rescoring import (
    SCORE,
    Column,
    Lists,
    best_leaving_out,
    reranked,
    tabulate,
    tune,
    tune_leaving_out,
)
from antiphon.decoding.tuning import Ranking
from antiphon.models.ngram import Perplexity, SentenceModel
from antiphon.report.statistics import Interval, difference_interval, rate_interval

lm_commands = typer.Typer(
    no_args_is_help=True, help="Language models: estimate n-grams, train a Transformer."
)

Texts = Annotated[
    list[Path],
    typer.Argument(help="Text files, plain or .gz: a sentence a line, after the last tab; or .jsonl."),
]
Heldout = Annotated[
    list[Path], typer.Option(metavar="FILE", help="Other text, to measure perplexity on. Repeatable.")
]
MOST_FOR_TOKENS = 200_000  # sentences that subwords are learnt from


@lm_commands.command("ngram")
def ngram_command(
    texts: Texts,
    out: Annotated[
        Path, typer.Option(help="A name ending in .arpa or .arpa.gz, or a folder (opens at once).")
    ],
    order: Annotated[int, typer.Option(min=1, help="Words of the longest n-gram.")] = 5,
    min_counts: Annotated[
        str, typer.Option(metavar="1,1,2", help="Leave out rarer n-grams, by order; the last holds beyond.")
    ] = "1",
    heldout: Heldout = [],
) -> None:
    """Estimate an n-gram model with interpolated modified Kneser-Ney smoothing."""
    from antiphon.models.arpa import save_ngram
    from antiphon.models.kneser_ney import estimate

    started = time.monotonic()
    model = estimate(sentences_of(texts), order, _counts(min_counts))
    seconds = time.monotonic() - started
    save_ngram(model, out)
    sizes = ", ".join(f"{len(level.keys):,}" for level in model.levels)
    screen.console.print(f"{out}: n-grams of order 1 to {model.order}: {sizes}; estimated in {seconds:.0f} s")
    _show_perplexity(model.perplexity, heldout)


@lm_commands.command("train")
def train_command(
    texts: Texts,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    subwords: Annotated[int, typer.Option(help="Number of SentencePiece tokens; 0 for whole words.")] = 1000,
    words: Annotated[int, typer.Option(help="Size of the vocabulary with --subwords 0.")] = 20_000,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 2000,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens a step, padding included.")] = 4096,
    lr: Annotated[float, typer.Option(help="The highest learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Decides first parameters, order and dropout.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    heldout: Heldout = [],
) -> None:
    """Train a Transformer language model: 3 blocks of width 256."""
    from antiphon.models.lm_training import LmTraining, train_lm

    sentences = sentences_of(texts)
    some = sentences[:: -(-len(sentences) // MOST_FOR_TOKENS) or 1]
    config = UnigramConfig(subwords) if subwords else WordsConfig(words)
    tokens = config.fit(some if subwords else sentences, alphabet=None)
    training = LmTraining(steps=steps, batch_tokens=batch_tokens, lr=lr, seed=seed)
    with screen.bar("training") as progress:
        model = train_lm(
            sentences,
            tokens,
            training=training,
            device=device,
            progress=lambda done, _: progress(done, steps),
        )
    notes = {"steps": steps, "batch_tokens": batch_tokens, "lr": lr, "seed": seed}
    model.save(out, notes)
    screen.console.print(f"{out}: {tokens.size:,} tokens, {steps:,} steps")
    _show_perplexity(model.perplexity, heldout)


def rescore_command(
    nbest: Annotated[Path, typer.Argument(help="N-best lists with references: JSON lines, plain or .gz.")],
    lm: Annotated[
        list[str],
        typer.Option(metavar="[NAME=]MODEL", help="An ARPA file, or a folder of `antiphon lm`. Repeatable."),
    ] = [],
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
    """Rank N-best lists anew with language models: word error rates before, after, and of the oracle."""
    models = dict(named_model(text) for text in lm)
    lists = tabulate(read_nbest(nbest), models)
    columns = columns_for(list(models), numbers_of("--weight", weight), search)
    scored = of_split(lists, split) if split else lists
    if tune_on or all(column.step == 0 for column in columns):
        weights = tune(of_split(lists, tune_on), columns) if tune_on else {c.name: c.weight for c in columns}
        chosen = scored.best(weights)
        screen.console.print(listed(f"weights, found on {tune_on}" if tune_on else "weights", weights))
    else:
        by_session = tune_leaving_out(scored, columns)
        chosen, weights = best_leaving_out(scored, by_session), tune(scored, columns)
        screen.console.print(f"each session with weights found on the {len(by_session) - 1} others")
        screen.console.print(listed("weights, found on all", weights))
    rows = {"first pass": scored.first(), "rescored": chosen, "oracle": scored.oracle()}
    screen.console.print(_table(scored, rows))
    if out is not None:
        write_nbest(out, reranked(scored, weights))
        screen.console.print(f"wrote {out}")


def load_sentence_model(path: Path, device: str = "cpu") -> SentenceModel:
    """A neural model (on that device), an n-gram folder or an ARPA file."""
    from antiphon.models import neural_lm

    return neural_lm.load_sentence_model(path, device)


def named_model(text: str) -> tuple[str, SentenceModel]:
    name, equals, path = text.partition("=")
    path = path if equals else text
    return name if equals else Path(path).name.split(".")[0], load_sentence_model(Path(path))


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


def of_split(lists: Lists, split: str) -> Lists:
    places = [place for place, entry in enumerate(lists.entries) if entry.split == split]
    if not places:
        there = ", ".join(sorted({str(entry.split) for entry in lists.entries}))
        raise ValueError(f"no lists of split {split!r}: there are {there}")
    return lists.of(places)


def _table(lists: Lists, choices: Mapping[str, np.ndarray]) -> Table:
    """Error rates of these choices of a hypothesis each, and how they differ from the first of them."""
    sessions = [entry.session or entry.id for entry in lists.entries]
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


def sentences_of(paths: Sequence[Path]) -> list[str]:
    return [text for path in paths for text in read_sentences(path)]


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--min-counts takes whole numbers such as 1,1,2, not {text!r}") from None


def _show_perplexity(measure: Callable[[list[str]], Perplexity], heldout: Sequence[Path]) -> None:
    for path in heldout:
        found = measure(sentences_of([path]))
        screen.console.print(
            f"{path.name}: perplexity {found.value:.1f} per word, ends of sentences included "
            f"({found.num_words:,} words, {found.num_sentences:,} sentences, {found.num_unknown:,} unknown)"
        )


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
    oracles = {f"oracle of {depth}": lists.oracle(depth) for depth in (5, 20, 100) if depth < beam}
    rows = {"best": lists.first(), **oracles, f"oracle of {beam}": lists.oracle()}
    screen.console.print(_table(lists, rows))
    speech = float(hearer.store.seconds[indices].sum())
    screen.console.print(f"{speech / 60:.1f} min of speech, real-time factor {seconds / speech:.3f}")
    screen.console.print(f"wrote {out}")


def _tell_trial(tried: Ranking, errors: int) -> None:
    screen.console.print(listed(f"{errors:,} errors", tried.weights))
