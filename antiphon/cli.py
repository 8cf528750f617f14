"""The command line: `antiphon demo`, `corpus`, `run`, `evaluate`, `compare` and the others."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
import yaml

from antiphon import config, screen
from antiphon.cli_adaptation import adapt_command
from antiphon.cli_corpus import corpus_commands
from antiphon.cli_decoding import nbest_command, rescore_command
from antiphon.cli_lm import lm_commands
from antiphon.cli_personalisation import personalize_command
from antiphon.cli_pruning import prune_command
from antiphon.cli_scoring import Steps, alignments_command, compare_command
from antiphon.core import Stopped
from antiphon.jobs import own_job
from antiphon.pools.joining import Place, choose_gpu, find_place, is_left_behind, join
from antiphon.pools.ranks import Lost
from antiphon.recipes import RECIPES
from antiphon.recipes import recipe as load_recipe
from antiphon.recipes.experiment import Experiment
from antiphon.team import Alone, Team
from antiphon.workers import end_with_starter, run_workers

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning of speech recognition: speech never leaves its speaker.",
)
app.add_typer(corpus_commands, name="corpus")
app.add_typer(lm_commands, name="lm")

Settings = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one setting by its path.")
]
Out = Annotated[Path, typer.Option(help="Folder for results.")]
Resume = Annotated[bool, typer.Option(help="Go on where the run in --out stopped.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: the GPU if there is one.")]


@app.command()
def demo(
    out: Out = Path("demo"),
    settings: Settings = [],
    resume: Resume = False,
    device: Device = "auto",
) -> None:
    """Synthesise a small corpus, train a seed model, and federate it over new speakers three ways."""
    from antiphon.data.demo_corpus import synthesise_corpus
    from antiphon.recipes.demo import SENTENCES_PER_SPEAKER, SPLITS

    experiment = config.override(load_recipe("demo"), settings)
    corpus = out / "corpus"
    if not (corpus / "corpus.json").exists():
        with screen.bar("synthesis") as progress:
            synthesise_corpus(corpus, SPLITS, SENTENCES_PER_SPEAKER, experiment.seed, progress)
    _run(experiment, corpus, out / "runs", resume, False, device)


@app.command()
def recipes(name: Annotated[str, typer.Argument(help="Show this recipe's settings as YAML.")] = "") -> None:
    """List the recipes, or show all settings of one."""
    if name:
        screen.console.print(yaml.safe_dump(config.to_dict(load_recipe(name)), sort_keys=False), end="")
        return
    screen.console.print(screen.listing({n: (r.__doc__ or "").splitlines()[0] for n, r in RECIPES.items()}))


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, or a YAML file of settings with its name.")],
    data: Annotated[Path, typer.Option(help="A corpus folder, made by `antiphon corpus import`.")],
    out: Out,
    settings: Settings = [],
    resume: Resume = False,
    skip_corrupt: Annotated[bool, typer.Option(help="Pass over a damaged checkpoint when resuming.")] = False,
    device: Device = "auto",
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the clients of a round.")] = 1,
    ordered: Annotated[
        bool, typer.Option(help="Several processes give the bits of one, for more traffic and memory.")
    ] = False,
    only: Annotated[list[str], typer.Option(metavar="RUN", help="Only this run of the recipe.")] = [],
    jobs: Annotated[int, typer.Option(min=1, help="Runs that go on at once, each a process.")] = 1,
) -> None:
    """Run a recipe on a corpus: train, validate, score on the test speakers, write a report."""
    place = find_place(os.environ)
    screen.be_silent(place is not None and place.rank > 0)
    experiment = config.override(load_recipe(recipe), settings)
    if jobs > 1:
        if place is not None or workers > 1:
            raise ValueError("--jobs is for runs of one process each: leave it or the other processes out")
        if job := own_job():
            _run_job(experiment, data, out, job, skip_corrupt, device)
        else:
            _run(experiment, data, out, resume, skip_corrupt, device, only, num_jobs=jobs)
        return
    if place is None and workers > 1:
        sys.exit(run_workers(workers))
    if place is not None and workers not in (1, place.size):
        raise ValueError(f"started as {place.size} processes already: leave --workers {workers} out")
    with _team(place, device, ordered) as (team, own_device):
        _run(experiment, data, out, resume, skip_corrupt, own_device, only, team)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run, such as out/dga.")],
    data: Annotated[Path | None, typer.Option(help="Another corpus than the run's own.")] = None,
    split: Annotated[str, typer.Option(help="Whose speech.")] = "test",
    device: Device = "auto",
    normalise: Steps = [],
) -> None:
    """Score a run's model on a split: WER and CER by speaker, sclite files."""
    from antiphon.decoding.normalisation import Normalisation
    from antiphon.recipes.evaluation import evaluate_run

    steps = Normalisation.of(normalise)
    with screen.Terminal() as terminal:
        scores, folder = evaluate_run(run, data, split, device, terminal.features, steps)
    screen.console.print(screen.score_table({run.name: scores}))
    screen.console.print(f"scores.json, ref.trn and hyp.trn are in {folder}")


@app.command()
def transcribe(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run, such as out/dga.")],
    files: Annotated[list[Path], typer.Argument(help="Recordings: WAV, FLAC, Opus, …")],
) -> None:
    """Recognise recordings with a run's model."""
    from antiphon.decoding.recognizer import Recognizer

    recognizer = Recognizer.load(run)
    failed = 0
    for file in files:
        try:
            text = recognizer.transcribe(file)
        except (ValueError, OSError) as error:
            failed += 1
            screen.say_error(f"{file}: {error}")
            continue
        typer.echo(text if len(files) == 1 else f"{file}\t{text}")
    if failed:
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or the folder of an experiment.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write, RESULTS.md beside it; in the one folder given, or here."),
    ] = None,
) -> None:
    """Write a report on a run, or a comparison of several: one HTML page and RESULTS.md."""
    from antiphon.report import write_report

    page = write_report(runs, out or (runs[0] if len(runs) == 1 else Path()) / "report.html")
    screen.console.print(f"wrote {page}")


app.command("compare")(compare_command)
app.command("alignments")(alignments_command)
app.command("nbest")(nbest_command)
app.command("rescore")(rescore_command)
app.command("personalize")(personalize_command)
app.command("prune")(prune_command)
app.command("adapt")(adapt_command)


@contextmanager
def _team(place: Place | None, device: str, ordered: bool) -> Iterator[tuple[Team, str]]:
    """The processes this one was started with, and the device it has among them."""
    if place is None:
        yield Alone(), device
        return
    from antiphon.recipes.preparation import choose_device

    end_with_starter()
    own_device = str(choose_device(choose_gpu(place, device)))  # refused before anybody waits for it
    with join(place, own_device, ordered) as team:
        yield team, own_device


def _run(
    experiment: Experiment,
    data: Path,
    out: Path,
    resume: bool,
    skip_corrupt: bool,
    device: str,
    only: Sequence[str] = (),
    team: Team | None = None,
    num_jobs: int = 1,
) -> None:
    from antiphon.recipes.launch import run_experiment, run_side_by_side

    num_cores = os.cpu_count() or 1
    with screen.Terminal() as terminal:
        if num_jobs > 1:
            scores = run_side_by_side(
                experiment, data, out, num_jobs, resume, device, num_cores, terminal, only
            )
        else:
            scores = run_experiment(
                experiment, data, out, resume, skip_corrupt, device, num_cores, terminal, only, team
            )
    screen.console.print(screen.score_table(scores))
    screen.console.print(f"Report: {out / 'report.html'}   Figures: {out / 'RESULTS.md'}")


def _run_job(
    experiment: Experiment, data: Path, out: Path, name: str, skip_corrupt: bool, device: str
) -> None:
    """The run that this process was started for."""
    from antiphon.recipes.launch import run_job

    end_with_starter()
    run_job(experiment, data, out, name, skip_corrupt, device)


def main() -> None:
    code = _exit_code()
    if is_left_behind():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _exit_code() -> int:
    try:
        app()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except Stopped as reason:
        screen.say_stopped(str(reason), _resume_command())
        return 130 if str(reason) == "interrupted" else 3
    except Lost as error:
        screen.say_lost(str(error), _resume_command())
        return 4
    except (ValueError, OSError) as error:
        screen.say_error(str(error))
        return 2
    except Exception:
        # Where peers were lost, leaving by the exception would hang in the interpreter's exit:
        # the traceback is printed here, and main() leaves at once.
        if not is_left_behind():
            raise
        traceback.print_exc()
        return 1
    return 0


def _resume_command() -> str:
    again = [word for word in sys.argv[1:] if word != "--resume"]
    return f"antiphon {shlex.join(again)} --resume"
