from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
import yaml

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.config import from_dict, overlay, override, to_dict
from antiphon.recipes import recipe
from antiphon.registry import choice_name
from antiphon.server.optimizers import Adam, ServerOptimizer, Sgd, Yogi
from antiphon.server.schedules import Constant, Cosine, Schedule
from antiphon.server.weighting import SoftmaxLoss, Uniform, Weighting
from antiphon.tasks.local_training import LocalTraining


@dataclass(frozen=True)
class FileConfig:
    path: str
    rate: int = 16000


@dataclass(frozen=True)
class BankConfig:
    dim: int = 80


@dataclass(frozen=True)
class Masks:
    width: int = 27


@dataclass(frozen=True)
class Run:
    rounds: int = 10
    server: ServerOptimizer = field(default_factory=Sgd)
    schedule: Schedule = field(default_factory=Constant)


@dataclass(frozen=True)
class Everything:
    rounds: int = 10
    lr: float = 0.1
    save: bool = True
    name: str = "run"
    deadline: float | None = None
    label: str | None = None
    patterns: tuple[str, ...] = ()
    kernel: tuple[int, int] = (3, 5)
    run: Run = Run()
    masks: Masks | None = None
    source: FileConfig | BankConfig = BankConfig()
    weighting: Weighting = field(default_factory=Uniform)
    more: tuple[Run, ...] = ()
    runs: dict[str, Run] = field(default_factory=lambda: {"fedavg": Run(), "dga": Run(server=Adam())})


FULL = Everything(
    deadline=2.5,
    label="x",
    patterns=("encoder.*", "1e-3", "null"),
    masks=Masks(3),
    source=FileConfig("a.onnx"),
    weighting=SoftmaxLoss(2.0),
    more=(Run(5, Yogi(), Cosine(5)),),
)


def test_a_choice_is_written_with_its_class_name_in_snake_case():
    written = to_dict(Everything(weighting=SoftmaxLoss(2.0), masks=Masks()))
    assert written["weighting"] == {"softmax_loss": {"beta": 2.0, "min_loss": 0.0}}
    assert written["source"] == {"bank": {"dim": 80}}
    assert written["masks"] == {"width": 27}
    assert written["kernel"] == [3, 5]
    assert choice_name(FileConfig) == "file"


@pytest.mark.parametrize("config", [Everything(), FULL])
def test_dict_json_and_yaml_come_back_the_same(config):
    assert from_dict(Everything, to_dict(config)) == config
    assert from_dict(Everything, json.loads(json.dumps(to_dict(config)))) == config
    assert from_dict(Everything, yaml.safe_load(yaml.safe_dump(to_dict(config)))) == config


def test_fields_left_out_take_their_defaults():
    assert from_dict(Everything, {"run": {"server": {"adam": {"lr": 1}}}}).run == Run(server=Adam(lr=1.0))


@pytest.mark.parametrize("written", ["yogi", {"yogi": {}}, {"yogi": None}])
def test_a_choice_may_be_given_by_name_alone(written):
    assert from_dict(Run, {"server": written}) == Run(server=Yogi())


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("rounds=5", Everything(rounds=5)),
        ("lr=1", Everything(lr=1.0)),
        ("lr=1e-3", Everything(lr=1e-3)),
        ("save=false", Everything(save=False)),
        ("name=other", Everything(name="other")),
        ("name=123", Everything(name="123")),
        ("name=a=b", Everything(name="a=b")),
        ("name=yes", Everything(name="yes")),
        ("name='quoted'", Everything(name="quoted")),
        ("name=", Everything(name="")),
        ("name=a: b: c", Everything(name="a: b: c")),
        ("label=null", Everything(label=None)),
        ("deadline=3", Everything(deadline=3.0)),
        ("patterns=[a, b]", Everything(patterns=("a", "b"))),
        ("patterns=a,b", Everything(patterns=("a", "b"))),
        ("patterns=encoder.*", Everything(patterns=("encoder.*",))),
        ("patterns=1,2", Everything(patterns=("1", "2"))),
        ("patterns=", Everything(patterns=())),
        ("kernel=7,9", Everything(kernel=(7, 9))),
        ("masks.width=3", Everything(masks=Masks(3))),
        ("masks=null", Everything()),
        ("masks={width: 4}", Everything(masks=Masks(4))),
        ("weighting=softmax_loss", Everything(weighting=SoftmaxLoss())),
        ("run.server=yogi", Everything(run=Run(server=Yogi()))),
        ("run.server={sgd: {momentum: 0.9}}", Everything(run=Run(server=Sgd(momentum=0.9)))),
        ("run.server.lr=0.5", Everything(run=Run(server=Sgd(0.5)))),
        ("run.server.sgd.lr=0.5", Everything(run=Run(server=Sgd(0.5)))),
        ("runs.dga.rounds=5", Everything(runs={"fedavg": Run(), "dga": Run(5, Adam())})),
    ],
)
def test_an_assignment_sets_one_field(assignment, expected):
    start = Everything(masks=Masks()) if assignment.startswith("masks") else Everything()
    assert override(start, [assignment]) == expected


def test_assignments_are_applied_in_order_and_leave_the_original_alone():
    config = Everything()
    changed = override(config, ["run.server=adam", "run.server.lr=0.5", "run.server.beta1=0", "rounds=2"])
    assert changed == Everything(rounds=2, run=Run(server=Adam(lr=0.5, beta1=0.0)))
    assert config == Everything()


def test_a_choice_with_a_required_field_is_completed_by_the_next_assignment():
    changed = override(Everything(), ["source=file", "source.path=model.onnx"])
    assert changed.source == FileConfig("model.onnx")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("rounds=2.0", r"rounds: expected int, not 2\.0 \(float\)"),
        ("rounds=true", "rounds: expected int, not True"),
        ("rounds=many", "rounds: expected int, not 'many'"),
        ("lr=true", "lr: expected float"),
        ("lr=fast", "lr: expected float, not 'fast'"),
        ("deadline=soon", "deadline: expected float or null, not 'soon'"),
        ("save=yes", "save: expected true or false, not 'yes'"),
        ("save=1", "save: expected true or false, not 1"),
        ("rounds=null", "rounds: expected int, not None"),
        ("kernel=1,2,3", r"kernel: expected tuple\[int, int\]"),
        ("kernel=1,x", r"kernel\[1\]: expected int, not 'x'"),
        ("../victim=1", "'../victim=1' is not an assignment"),
        (".=1", "'.=1' is not an assignment"),
        ("round=5", "configuration: unknown key 'round'; did you mean 'rounds'.*valid: rounds, lr"),
        (
            "run.server.momentun=1",
            "run.server: unknown key 'momentun'; did you mean 'momentum'.*lr, momentum",
        ),
        ("run.server=yogy", "run.server: unknown choice 'yogy'; did you mean 'yogi'.*sgd, adam, yogi"),
        ("run.server=3", "run.server: expected one of sgd, adam, .*, not 3"),
        ("runs.dgaa.rounds=5", "runs: unknown key 'dgaa'; did you mean 'dga'.*fedavg, dga"),
        ("rounds.x=5", "rounds is int: it has no part 'x'"),
        ("masks.width=5", "masks is null, so it has no 'width'"),
        ("source=file", "source: file needs path"),
        ("run.server.lr=-1", "run.server: lr must be above 0, not -1"),
        ("rounds", "'rounds' is not an assignment: write key=value"),
        ("=5", "'=5' is not an assignment"),
    ],
)
def test_what_cannot_be_is_refused_with_its_path_and_what_would_do(assignment, message):
    with pytest.raises(ValueError, match=message):
        override(Everything(), [assignment])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": 5}, "name: expected text, not 5"),
        ({"patterns": "abc"}, r"patterns: expected tuple\[str, \.\.\.\], not 'abc'"),
        ({"run": 5}, "run: expected the fields of run, not 5"),
        ({"run": {"server": {"sgd": {}, "adam": {}}}}, "run.server: expected one of .*, not 2 names"),
        ({"run": {"server": {"sgd": 3}}}, "run.server: expected the fields of sgd, not 3"),
        ({"runs": {1: {}}}, "runs: names must be text, not 1"),
        ({"runs": {"a": {"round": 1}}}, "runs.a: unknown key 'round'; did you mean 'rounds'"),
        ({"more": [{}, {"rounds": "x"}]}, r"more\[1\]\.rounds: expected int"),
        ([1], "configuration: expected the fields of everything"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_its_path(data, message):
    with pytest.raises(ValueError, match=message):
        from_dict(Everything, data)


def test_an_int_given_for_a_float_becomes_one():
    assert type(from_dict(Everything, {"lr": 1}).lr) is float


def test_a_choice_by_name_can_be_completed_deep_inside():
    from antiphon.models.las import LasConfig
    from antiphon.recipes import recipe

    experiment = override(recipe("dga"), ["model=las", "model.encoder.dim=64", "model.decoder_dim=96"])
    assert isinstance(experiment.model, LasConfig)
    assert (experiment.model.encoder.dim, experiment.model.decoder_dim) == (64, 96)
    assert experiment.model.encoder.num_layers == LasConfig().encoder.num_layers


def test_names_with_points_in_them_can_be_set() -> None:
    before = recipe("table1")
    after = override(before, ["runs.softmax-0.3.rounds.total=7"])
    assert after.runs["softmax-0.3"].rounds.total == 7
    others = {name: run for name, run in after.runs.items() if name != "softmax-0.3"}
    assert others == {name: run for name, run in before.runs.items() if name != "softmax-0.3"}
    with pytest.raises(ValueError, match=r"unknown key 'softmax-0'; did you mean 'softmax-0\.3'"):
        override(before, ["runs.softmax-0.4.rounds.total=7"])


def test_fields_without_a_name_are_those_of_the_choice_that_is_there() -> None:
    before = Everything(run=Run(server=Adam(beta1=0.5)))
    assert overlay(before, {"run": {"server": {"lr": 0.25}}}).run.server == Adam(lr=0.25, beta1=0.5)
    with pytest.raises(ValueError, match=r"run\.server: unknown key 'momentum'"):
        overlay(before, {"run": {"server": {"momentum": 0.9}}})  # Sgd has it, which is not there
    nested = Rehearsed(FedAvg(LocalTraining(steps=3), server=Adam()))
    after = overlay(nested, {"inner": {"local": {"lr": 0.25}}})
    assert after.inner == FedAvg(LocalTraining(lr=0.25, steps=3), server=Adam())


def test_what_was_written_before_there_was_a_choice_is_the_first() -> None:
    assert from_dict(Everything, {"source": {"path": "a", "rate": 8000}}).source == FileConfig("a", 8000)
    old = {"inner": {"local": {"lr": 0.5}}, "local": {"steps": 7}}
    expected = Rehearsed(FedAvg(LocalTraining(lr=0.5)), LocalTraining(steps=7))
    assert from_dict(Rehearsed, old) == expected
    assert from_dict(Rehearsed, to_dict(expected)) == expected
    with pytest.raises(ValueError, match="inner: unknown choice 'local'"):
        override(Rehearsed(), ["inner=local"])


def test_one_assignment_may_be_a_plain_text() -> None:
    assert override(recipe("dga"), "seed=12") == override(recipe("dga"), ["seed=12"])
