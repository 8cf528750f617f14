"""The documentation: its examples run, its quotations are in the code, its commands and links exist."""

from __future__ import annotations

import re
import runpy
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import check
import numpy as np
import pytest
import torch
import yaml
from command import Done, Fault, script_in_fork
from world import World, assert_same, tones, write_source, write_wav

from antiphon import config, new_project
from antiphon.core import Report, Task, Update, Weigh
from antiphon.engine import Engine, Listener, Outcome, Rounds
from antiphon.experiment import runner
from antiphon.experiment.settings import Experiment
from antiphon.pools.local import LocalPool
from antiphon.recipes import RECIPES
from antiphon.records.journal import read
from antiphon.tasks.local_training import LocalTraining

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)

# What a test can wait for, in place of the settings that the examples read.
TINY = """
recipe: dga
frontend: {filterbank: {dim: 8}}
model: {ctc: {encoder: {blstm: {dim: 6, num_layers: 1, stack: 2}}}}
runs:
  seed: {rounds: {total: 2}, algorithm: {central: {local: {steps: 3}}}}
  dga: {rounds: {total: 2, cohort: 3}}
"""


# --- Examples -------------------------------------------------------------------------------------


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder in which the examples find tiny settings; nothing is drawn."""
    (tmp_path / "docs" / "examples").mkdir(parents=True)
    (tmp_path / "docs" / "examples" / "small.yaml").write_text(TINY)
    monkeypatch.setattr(runner, "write_report", lambda *arguments: None)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def any_algorithms() -> Any:
    yield
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process


def test_a_few_lines_go_from_recordings_to_text(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_source(checkout / "recordings", num_utterances=3)
    write_wav(checkout / "hello.wav", tones("abc de", 1.0, np.random.default_rng(0)))
    done = runpy.run_path(str(EXAMPLES / "from_python.py"))
    counts = done["scores"]["dga"]["words"]
    assert counts["length"] > 0
    assert capsys.readouterr().out.endswith(f"{counts}\n")


def test_the_script_of_the_new_algorithm_compares_it(
    world: World, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "demo").mkdir()
    (checkout / "demo" / "corpus").symlink_to(world.corpus)
    runpy.run_path(str(EXAMPLES / "run_median_norm.py"))
    first = capsys.readouterr().out
    lines = first.splitlines()
    assert [line.split()[0] for line in lines] == ["seed", "fedavg", "median-norm"]
    settings = yaml.safe_load((checkout / "median" / "experiment.json").read_text())["config"]["runs"]
    assert settings["median-norm"]["algorithm"]["median_norm:MedianNorm"]["limit"] == 0.5
    for entry in read(checkout / "median" / "median-norm" / "journal.jsonl")[1:]:
        assert 0 < entry["metrics"]["scale"] <= 1
    runpy.run_path(str(EXAMPLES / "run_median_norm.py"))  # a second time: the runs are found again
    assert capsys.readouterr().out == first


class Script:
    """`python docs/examples/run_median_norm.py` in a folder, in a process of its own."""

    def __init__(self, folder: Path, corpus: Path) -> None:
        (folder / "docs" / "examples").mkdir(parents=True)
        (folder / "docs" / "examples" / "small.yaml").write_text(TINY)
        (folder / "demo").mkdir()
        (folder / "demo" / "corpus").symlink_to(corpus)
        self.folder = folder

    def run(self, fault: Fault | None = None) -> Done:
        log = self.folder / "log"
        return script_in_fork(EXAMPLES / "run_median_norm.py", [], log, fault, self.folder)

    def results(self) -> dict[str, bytes]:
        files = ["journal.jsonl", "model/model.safetensors", "evaluation/test/best/hyp.trn"]
        runs = ["seed", "fedavg", "median-norm"]
        return {
            f"{run}/{file}": (self.folder / "median" / run / file).read_bytes()
            for run in runs
            for file in files
        }


def test_the_script_of_the_new_algorithm_is_interrupted_killed_and_run_again(
    world: World, tmp_path: Path
) -> None:
    """Ctrl-C in FedAvg's rounds, kill -9 in those of the new algorithm, in a client and in a checkpoint."""
    straight, stopped = (
        Script(tmp_path / "straight", world.corpus),
        Script(tmp_path / "stopped", world.corpus),
    )
    expected = straight.run()
    assert expected.code == 0, expected.output
    client, save = "antiphon.clients.worker.refuse_nonfinite", "antiphon.records.checkpoint.save_file"
    interrupted = stopped.run(Fault(client, 40, signal=signal.SIGINT))
    assert interrupted.code == 1
    assert "Stopped: interrupted" in interrupted.output
    assert not (stopped.folder / "median" / "median-norm").exists()
    for fault in (Fault(client, 80), Fault(save, 12, before=False)):
        assert stopped.run(fault).code == -signal.SIGKILL
        assert (stopped.folder / "median" / "median-norm").exists()
        assert not (stopped.folder / "median" / "median-norm" / "model").exists()
    done = stopped.run()
    assert done.code == 0, done.output
    taken_over, _, printed = done.output.partition("\n")
    assert taken_over.startswith("taking over the lock of median: process")
    assert printed == expected.output
    assert stopped.results() == straight.results()


def test_the_private_server_spends_its_budget_and_stops(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "private_marginals.py"))
    *rounds, stopped = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in rounds] == ["round 1", "round 2", "round 3"]
    assert rounds[-1].endswith("epsilon 2.00 of 2.0 spent")
    assert stopped.startswith("the privacy budget allows no further release: 3 releases")


def test_the_settings_file_changes_its_recipe_and_nothing_unknown() -> None:
    settings = yaml.safe_load((EXAMPLES / "small.yaml").read_text())
    experiment = config.overlay(RECIPES[settings["recipe"]](), settings)
    assert experiment.runs["dga"].rounds.total == 30
    assert experiment.runs["dga"].start_run == "seed"


# --- The algorithm of "write your own" ------------------------------------------------------------


class Given:
    """A pool that answers with deltas of given lengths, one a round."""

    def __init__(self, lengths: Sequence[float]) -> None:
        self.lengths = iter(lengths)

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        length = next(self.lengths)
        return Update({"w": torch.tensor([0.6, 0.8]) * length}, reports=(Report("a", {}),))

    def collect(self, task: Task, cohort: Sequence[str]) -> Any:
        raise NotImplementedError


@pytest.fixture
def median_norm(monkeypatch: pytest.MonkeyPatch) -> Any:
    return runpy.run_path(str(EXAMPLES / "median_norm.py"))["MedianNorm"]


def test_an_aggregate_is_clipped_to_half_the_median_of_those_before_it(median_norm: Any) -> None:
    algorithm, pool = median_norm(window=3), Given([1.0, 4.0, 0.5, 100.0, 0.0])
    state, steps = algorithm.init({"w": torch.zeros(2)}), []
    for _ in range(5):
        before = state.params["w"]
        state, metrics = algorithm.round(state, ["a"], pool)
        steps.append(float((before - state.params["w"]).norm()))
    # Medians of the last three norms: 1, 2.5, 1, 4, 0.5.
    assert steps == pytest.approx([0.5, 1.25, 0.5, 2.0, 0.0])
    assert state.norms == pytest.approx((0.5, 100.0, 0.0))
    assert metrics["scale"] == 1.0


class Killed(Exception):
    pass


class KilledAfter(Listener):
    """Ends a run between the journal and the checkpoint of a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def finished(self, entry: Any, clock: Any) -> None:
        if entry["round"] == self.round:
            raise Killed


def test_the_algorithm_resumes_exactly(median_norm: Any, world: World, tmp_path: Path) -> None:
    clients = world.clients()

    def run(folder: Path, resume: bool = False, listener: Listener | None = None) -> Outcome:
        algorithm = median_norm(LocalTraining(lr=0.05, batch_seconds=1.5), window=3)
        rounds = Rounds(total=5, cohort=3, save_every=2)
        engine = Engine(
            algorithm, LocalPool(world.worker(clients)), list(clients), rounds, folder, 7, listener=listener
        )
        return engine.run(world.params(), resume)

    straight = run(tmp_path / "straight")
    with pytest.raises(Killed):
        run(tmp_path / "stopped", listener=KilledAfter(4))
    resumed = run(tmp_path / "stopped", resume=True)
    assert len(vars(straight.state)["norms"]) == 3
    assert vars(straight.state).keys() == vars(resumed.state).keys()
    for key, value in vars(straight.state).items():
        assert_same(value, vars(resumed.state)[key], key)
    journals = [(tmp_path / name / "journal.jsonl").read_bytes() for name in ("straight", "stopped")]
    assert journals[0] == journals[1]


# --- What the pages say ---------------------------------------------------------------------------


def commands(page: Path) -> list[tuple[str, str]]:
    """Every `antiphon ...` of a page with the first line that is shown after it.

    A page may break long lines: a command after a backslash, output before four spaces.
    """
    found = []
    for command in check.commands(page):
        for line in command.text.replace("\\\n", " ").splitlines():
            if started := re.match(r"(?:(?:torchrun|srun|mpiexec|\w+=\S+) .*?)?(antiphon .*)", line):
                shown = re.sub(r"\n {4}(?=\S)", " ", command.shown or "").splitlines()
                found.append((started[1], next((after for after in shown if after != "…"), "")))
    return found


@every_page
def test_quoted_code_is_in_the_file_it_is_quoted_from(page: Path) -> None:
    for language in ("python", "yaml"):
        for block in check.blocks(page, language):
            first, _, body = block.partition("\n")
            assert first.startswith("# "), f"{page.name}: say which file this is from: {first}"
            assert body in (ROOT / first[2:]).read_text(), f"{page.name}: not in {first[2:]}:\n{body}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", prose):
        if not target.startswith("http"):
            file = page.parent / target if target else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@every_page
def test_no_page_names_a_folder_of_somebody_s_machine(page: Path) -> None:
    assert not re.search(r"/(work|tmp|root|home)/", page.read_text())


def settings_of(recipe: str) -> Experiment:
    if Path(recipe).name == "experiment.yaml":  # what `antiphon new` makes
        return RECIPES["dga"]()
    if recipe.endswith(".yaml"):
        folder = ROOT / "benchmarks" if recipe.startswith("benchmarks/") else EXAMPLES
        settings = yaml.safe_load((folder / Path(recipe).name).read_text())
        return config.overlay(RECIPES[settings["recipe"]](), settings)
    if recipe not in RECIPES:
        raise config.unknown(recipe, RECIPES, "", "recipe")
    return RECIPES[recipe]()


# Mistakes that are found later, with the corpus or the run folder.
LATER = ("error: run ", "error: out ", "error: checkpoint ", "error: another process ")


@every_page
def test_settings_in_commands_are_as_right_or_as_wrong_as_the_page_says(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in (
        EXAMPLES,
        ROOT / "benchmarks",
        new_project(tmp_path / "mine").folder,
    ):  # pages choose classes in them
        monkeypatch.syspath_prepend(str(folder))
    for command, output in commands(page):
        words = shlex.split(command)
        if words[1] != "run":
            continue
        chosen = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        if output.startswith("error: ") and not output.startswith(LATER):
            with pytest.raises(ValueError) as caught:
                config.override(settings_of(words[2]), chosen)
            assert f"error: {caught.value}" == output, command
        else:
            config.override(settings_of(words[2]), chosen)


@every_page
def test_a_table_of_error_rates_has_the_runs_of_its_command(page: Path) -> None:
    for command in check.commands(page):
        table = re.search(r"Speakers of test: .*?round\n ─+\n(.*?)\n(?:\n|$)", command.shown or "", re.DOTALL)
        words = shlex.split(command.text.partition("antiphon ")[2])
        if table and words[0] == "run":
            only = [words[place + 1] for place, word in enumerate(words) if word == "--only"]
            runs = [row.split()[0] for row in table[1].splitlines()]
            assert runs == (only or list(settings_of(words[1]).runs)), command.place


@every_page
def test_options_in_commands_exist(page: Path) -> None:
    from typer.main import get_command

    from antiphon.cli import app

    for command, _ in commands(page):
        words, group = shlex.split(command)[1:], get_command(app)
        while hasattr(group, "commands"):
            assert words[0] in group.commands, command
            group, words = group.commands[words[0]], words[1:]
        known = {option for parameter in group.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, command
