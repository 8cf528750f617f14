"""Listeners of runs, and the sinks for Weights & Biases and MLflow."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import antiphon
from antiphon.records.listener import Listeners, RunInfo
from antiphon.records.writer import Listener

SETTINGS = {
    "algorithm": {"kind": "Dga", "beta": 2.0, "local": {"lr": 0.1, "note": "of ada"}},
    "rounds": {"total": 2},
    "start_folder": "home/ada",
    "speakers": {"ada": 1},
}
RUN = RunInfo("dga", "table", 7, 2, 36, Path("home/ada/dga"), SETTINGS)
NUMBERS = {"seed": 7, "num_clients": 36, "algorithm.beta": 2.0, "algorithm.local.lr": 0.1, "rounds.total": 2}
ENTRY = {
    "round": 2,
    "cohort": ["ada", "b@b"],
    "clients": {"ada": {"loss": 1.5}, "b@b": {"loss": 2.5}},
    "failures": {"eve": "dropped out"},
    "loss": 2.0,
    "valid": {"wer": 0.5},
}
SCALARS = {
    "train/loss": 2.0,
    "valid/wer": 0.5,
    "clock/seconds": 3.0,
    "cohort/answered": 2.0,
    "cohort/failed": 1.0,
}
COUNTS = {"substitutions": 1, "deletions": 1, "insertions": 0, "length": 8}
SCORES = {"split": "test", "round": 2, "words": COUNTS, "characters": {**COUNTS, "length": 40}}


def play(listener: Listener, scores: dict[str, Any] | None = SCORES) -> None:
    listener.replied("ada")
    listener.at_sites({"oslo": (1, 2)})
    listener.finished(ENTRY, {"round": 2, "seconds": 3.0})
    listener.ended(scores)


class Remembering(Listener):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def resumed(self, round: int) -> None:
        self.events.append(("resumed", round))

    def replied(self, client: str) -> None:
        self.events.append(("replied", client))

    def at_sites(self, sites: Any) -> None:
        self.events.append(("at_sites", sites))

    def finished(self, entry: Any, clock: Any) -> None:
        self.events.append(("finished", entry["round"], clock["seconds"]))

    def ended(self, scores: Any) -> None:
        self.events.append(("ended", scores is not None))


def test_a_listener_ignores_what_it_does_not_override() -> None:
    play(antiphon.Listener())


def test_several_listeners_hear_the_same() -> None:
    first, second = Remembering(), Remembering()
    together = Listeners([first, second])
    together.resumed(1)
    play(together)
    sites = ("at_sites", {"oslo": (1, 2)})
    assert first.events == [("resumed", 1), ("replied", "ada"), sites, ("finished", 2, 3.0), ("ended", True)]
    assert second.events == first.events


def test_the_listener_of_the_docs_prints_rounds_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[3] / "docs" / "examples" / "print_losses.py"
    make = runpy.run_path(str(example))["PrintLosses"]
    play(make(RUN))
    play(make(RUN), None)
    last = ["dga has ended", "dga was stopped"]
    assert capsys.readouterr().out.splitlines() == [
        "dga, round 2: loss 2.00", last[0], "dga, round 2: loss 2.00", last[1]
    ]  # fmt: skip


# --- Weights & Biases -----------------------------------------------------------------------------


class FakeWandb(ModuleType):
    """Has the calls that the sink uses, with the signatures of wandb 0.31."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.arguments: dict[str, Any] = {}
        self.logged: list[tuple[dict[str, float], int]] = []
        self.summary: dict[str, float] = {}
        self.exit_codes: list[int] = []

    def init(
        self,
        *,
        project: str,
        name: str,
        group: str,
        config: Any,
        reinit: str,
        settings: Any,
        mode: Any = None,
    ) -> Any:
        self.arguments = {"project": project, "name": name, "group": group, "config": config, "mode": mode}
        self.settings = settings
        return SimpleNamespace(
            log=lambda data, step: self.logged.append((data, step)),
            summary=self.summary,
            finish=lambda exit_code: self.exit_codes.append(exit_code),
        )

    def Settings(self, **settings: Any) -> dict[str, Any]:  # noqa: N802
        return settings


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_gets_numbers_and_no_names_of_clients(wandb: FakeWandb) -> None:
    play(antiphon.wandb_listener("speech", options={"mode": "offline"})(RUN))
    assert wandb.arguments == {
        "project": "speech", "name": "dga", "group": "table", "config": NUMBERS, "mode": "offline"
    }  # fmt: skip
    assert wandb.logged == [(SCALARS, 2)]
    assert wandb.summary == {"test/wer": 0.25, "test/cer": 0.05}
    assert wandb.exit_codes == [0]
    assert wandb.settings["console"] == "off"  # the terminal shows names of clients
    assert wandb.settings["disable_git"]


def test_wandb_gets_names_of_clients_if_asked(wandb: FakeWandb) -> None:
    play(antiphon.wandb_listener("speech", clients=True)(RUN))
    ((scalars, _),) = wandb.logged
    assert scalars == {**SCALARS, "clients/ada/loss": 1.5, "clients/b@b/loss": 2.5}


def test_a_stopped_run_has_failed_there(wandb: FakeWandb) -> None:
    play(antiphon.wandb_listener("speech")(RUN), None)
    assert wandb.summary == {}
    assert wandb.exit_codes == [1]


# --- MLflow ---------------------------------------------------------------------------------------


class FakeClient:
    """Has the calls that the sink uses, with the signatures of mlflow 3."""

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.params: dict[str, Any] = {}
        self.metrics: list[Any] = []
        self.experiments: dict[str, str] = {}
        self.statuses: list[str] = []
        FakeClient.last = self

    last: FakeClient

    def get_experiment_by_name(self, name: str) -> Any:
        number = self.experiments.get(name)
        return SimpleNamespace(experiment_id=number) if number else None

    def create_experiment(self, name: str) -> str:
        assert name not in self.experiments
        self.experiments[name] = "4"
        return "4"

    def create_run(self, experiment_id: str, *, run_name: str, tags: dict[str, str]) -> Any:
        self.created = (experiment_id, run_name, tags)
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def log_param(self, run_id: str, key: str, value: Any) -> None:
        self.params[key] = value

    def log_batch(self, run_id: str, metrics: Any = ()) -> None:
        assert 0 < len(metrics) <= 1000
        self.metrics += metrics

    def set_terminated(self, run_id: str, status: str) -> None:
        self.statuses.append(status)


@pytest.fixture
def _mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    fake.MlflowClient = FakeClient  # type: ignore[attr-defined]
    entities.Metric = lambda key, value, timestamp, step: (key, value, step)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)


@pytest.mark.usefixtures("_mlflow")
def test_mlflow_gets_numbers_and_no_names_of_clients() -> None:
    listen = antiphon.mlflow_listener("speech")
    play(listen(RUN))
    play(listen(RUN), None)  # the experiment exists now
    client = FakeClient.last
    assert client.created == ("4", "dga", {"recipe": "table"})
    assert client.params == NUMBERS
    assert client.statuses == ["FINISHED", "FAILED"]
    rates = [("test/wer", 0.25, 2), ("test/cer", 0.05, 2)]
    rounds = [(tag, value, 2) for tag, value in SCALARS.items()]
    assert sorted(client.metrics) == sorted([*rounds, *rates, *rounds])


@pytest.mark.usefixtures("_mlflow")
def test_mlflow_gets_names_of_clients_if_asked_without_characters_that_it_refuses() -> None:
    play(antiphon.mlflow_listener("speech", clients=True)(RUN))
    names = {metric[0] for metric in FakeClient.last.metrics}
    assert {"clients/ada/loss", "clients/b_b/loss"} < names


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf"pip install 'antiphon\[{name}\]'"):
        getattr(antiphon, f"{name}_listener")("speech")


def test_a_database_without_its_packages_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def client(tracking_uri: str | None) -> None:
        raise ModuleNotFoundError("No module named 'alembic'")

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=client))
    with pytest.raises(ValueError, match=r"cannot use its own database \(No module named 'alembic'\): pip"):
        antiphon.mlflow_listener("speech")
    with pytest.raises(ValueError, match=r"cannot use sqlite:///runs.db .* or name a server"):
        antiphon.mlflow_listener("speech", tracking_uri="sqlite:///runs.db")


# --- The real packages, where they are installed ---------------------------------------------------


def test_the_real_wandb_writes_numbers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    listen = antiphon.wandb_listener("speech", options={"mode": "offline", "dir": str(tmp_path)})
    play(listen(RUN))
    wandb.teardown()  # it has written the file then
    (written,) = tmp_path.rglob("*.wandb")
    content = written.read_bytes()
    assert b"valid/wer" in content
    for private in (b"ada", b"eve", b"home/", b"of ada", str(Path.cwd()).encode()):
        assert private not in content
    assert not [path for path in written.parent.rglob("files/*") if path.is_file()]


def test_the_real_mlflow_keeps_the_metrics(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")  # the whole package mlflow brings it
    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    play(antiphon.mlflow_listener("speech", tracking_uri=uri, clients=True)(RUN))
    client = mlflow.MlflowClient(tracking_uri=uri)
    number = client.get_experiment_by_name("speech").experiment_id
    (run,) = client.search_runs([number])
    assert run.data.metrics["test/wer"] == 0.25
    assert run.data.metrics["clients/b_b/loss"] == 2.5
    assert run.data.params["algorithm.beta"] == "2.0"
    assert run.info.status == "FINISHED"
