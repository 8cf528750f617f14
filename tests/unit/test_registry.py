"""Choices by name: registered ones, those of installed packages, and any class that can be imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from foreign_choices import (
    Alternating,
    Averages,
    BySeconds,
    EvenAndOdd,
    Halving,
    NoRound,
    Plain,
    Quartering,
    Signs,
    Thawed,
)

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.algorithms.self_training import SelfTrained
from antiphon.config import from_dict, overlay, override, to_dict
from antiphon.core import ALGORITHMS, Task
from antiphon.experiment.runner import run_experiment
from antiphon.experiment.settings import Experiment, Run
from antiphon.registry import Registry
from antiphon.server.optimizers import Adam
from antiphon.server.weighting import WEIGHTINGS
from antiphon.tasks.client_work import CLIENT_WORK
from antiphon.tasks.views import CLIENT_VIEWS, View, through

HALVING = "foreign_choices:Halving"


@dataclass(frozen=True)
class Tone:
    """A choice of a small registry."""

    pitch: int = 1


@dataclass(frozen=True)
class Noise:
    """Another one."""

    loudness: float = 0.5


def sounds(**settings: Any) -> Registry:
    registry = Registry("antiphon.test_sounds", **settings)
    for choice in (Tone, Noise):
        registry.register(choice)
    return registry


# --- Names ----------------------------------------------------------------------------------------


def test_a_registered_class_is_found_by_its_name_in_snake_case() -> None:
    assert sounds()["tone"] is Tone


def test_a_class_may_be_registered_under_another_name() -> None:
    registry = Registry("antiphon.test_sounds")
    assert registry.named("beep")(Tone) is Tone
    assert registry["beep"] is Tone
    assert registry.name_of(Tone) == "beep"


def test_names_are_listed_with_the_default_first() -> None:
    assert list(sounds(default="noise")) == ["noise", "tone"]


def test_the_package_s_own_algorithms_are_registered_without_an_import_of_their_modules() -> None:
    assert {"fed_avg", "rehearsed", "self_trained", "federated_pruning", "central"} <= set(ALGORITHMS)
    assert next(iter(ALGORITHMS)) == "fed_avg"


def test_a_name_that_two_classes_want_is_refused() -> None:
    other = type("Tone", (), {"__module__": "elsewhere"})
    with pytest.raises(ValueError, match=r"'tone' is registered twice: .*:Tone, elsewhere:Tone"):
        sounds().register(other)


def test_a_module_that_is_imported_twice_may_register_twice() -> None:
    registry = sounds()
    again = type("Tone", (), {"__module__": Tone.__module__, "__qualname__": Tone.__qualname__})
    registry.register(again)
    assert registry._registered["tone"] is again


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"unknown choice 'tonne'; did you mean 'tone'\? valid: tone, noise"):
        sounds()["tonne"]


def test_an_unknown_name_of_thousands_of_characters_is_cut() -> None:
    with pytest.raises(ValueError, match=r"^unknown choice '(x{199})…; valid: tone, noise$"):
        sounds()["x" * 5000]


def test_an_unknown_name_in_a_configuration_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"algorithm: unknown choice 'fed_avgg'; did you mean 'fed_avg'\?"):
        from_dict(Run, {"algorithm": "fed_avgg"})


# --- Classes of other packages --------------------------------------------------------------------


def install(folder: Path, group: str, *lines: str) -> None:
    """Put a distribution with entry points of a group into a folder."""
    metadata = folder / "stranger-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))


def test_a_class_of_an_installed_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "antiphon.algorithms", "halving = foreign_choices:Halving")
    monkeypatch.syspath_prepend(tmp_path)
    assert from_dict(Run, {"algorithm": {"halving": {"share": 0.25}}}).algorithm == Halving(share=0.25)


def test_a_class_of_an_installed_package_is_stored_by_the_name_of_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "antiphon.algorithms", "halving = foreign_choices:Halving")
    monkeypatch.syspath_prepend(tmp_path)
    assert to_dict(Run(Halving()))["algorithm"].keys() == {"halving"}


def test_entry_points_are_listed_among_the_valid_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "antiphon.algorithms", "halving = foreign_choices:Halving")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="did you mean 'halving'"):
        ALGORITHMS["halvin"]


def test_an_entry_point_whose_package_is_broken_is_refused_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "antiphon.algorithms", "broken = no_such_package.module:Class")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"cannot import 'no_such_package\.module:Class' .*PYTHONPATH"):
        ALGORITHMS["broken"]


def test_entry_points_of_another_group_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "antiphon.weightings", "halving = foreign_choices:Halving")
    monkeypatch.syspath_prepend(tmp_path)
    assert "halving" not in ALGORITHMS


def test_a_registered_name_wins_over_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "antiphon.algorithms", "fed_avg = foreign_choices:Halving")
    monkeypatch.syspath_prepend(tmp_path)
    assert ALGORITHMS["fed_avg"] is FedAvg


def test_any_class_that_can_be_imported_is_found_by_its_path() -> None:
    assert ALGORITHMS[HALVING] is Halving
    assert WEIGHTINGS["foreign_choices:BySeconds"] is BySeconds


@pytest.mark.parametrize(
    "path",
    [
        "no_such_module:Class",
        "foreign_choices:Nobody",
        "foreign_choices:",
        ":Halving",
        "foreign_choices:Halving:more",
        "a b:C",
    ],
)
def test_a_path_that_leads_nowhere_is_refused_before_anything_runs(path: str) -> None:
    with pytest.raises(ValueError, match=r"algorithm: cannot import .*install its package or set PYTHONPATH"):
        from_dict(Run, {"algorithm": path})


@pytest.mark.parametrize("error", ["SyntaxError", "NameError", "RuntimeError"])
def test_a_module_that_breaks_when_it_is_imported_is_refused_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    (tmp_path / f"breaks_{error}.py").write_text(
        "def (" if error == "SyntaxError" else f"raise {error}('no')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"algorithm: cannot import 'breaks_{error}:Class'"):
        from_dict(Run, {"algorithm": f"breaks_{error}:Class"})


def test_a_class_that_lacks_a_method_is_refused_by_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"'foreign_choices:NoRound' cannot be used .* it has no round"):
        from_dict(Run, {"algorithm": "foreign_choices:NoRound"})


def test_a_class_that_is_no_dataclass_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match=r"it has no dataclass fields \(decorate it with @dataclass"):
        from_dict(Run, {"algorithm": "foreign_choices:Plain"})


def test_a_function_is_no_algorithm() -> None:
    with pytest.raises(ValueError, match=r"'foreign_choices:work' cannot be used .* it has no init, round"):
        from_dict(Run, {"algorithm": "foreign_choices:work"})


# --- Configurations with a stranger's class in them -----------------------------------------------

NESTED = Run(Rehearsed(SelfTrained(Halving(weighting=BySeconds(2.0), share=0.25))), labelled=0.5)


def test_a_stranger_s_class_inside_wrappers_is_written_by_its_path() -> None:
    written = to_dict(NESTED)["algorithm"]["rehearsed"]["inner"]["self_trained"]["inner"]
    assert written.keys() == {HALVING}
    assert written[HALVING]["weighting"] == {"foreign_choices:BySeconds": {"power": 2.0}}


def test_a_stranger_s_class_inside_wrappers_comes_back_from_yaml() -> None:
    assert from_dict(Run, yaml.safe_load(yaml.safe_dump(to_dict(NESTED)))) == NESTED


def test_a_stranger_s_class_can_be_set_on_the_command_line() -> None:
    changed = override(Run(Rehearsed()), [f"algorithm.inner={HALVING}", "algorithm.inner.share=0.75"])
    assert changed.algorithm == Rehearsed(Halving(share=0.75))


def test_a_field_inside_a_stranger_s_class_can_be_set_on_the_command_line() -> None:
    settings = ["algorithm.inner.inner.weighting.power=3", "algorithm.inner.inner.local.lr=0.5"]
    inner = override(NESTED, settings).algorithm.inner.inner  # type: ignore[attr-defined]
    assert (inner.weighting, inner.local.lr) == (BySeconds(3.0), 0.5)


def test_a_yaml_file_may_change_one_field_of_a_stranger_s_class() -> None:
    data = yaml.safe_load(f"algorithm: {{rehearsed: {{inner: {{'{HALVING}': {{share: 0.1}}}}}}}}")
    changed = overlay(Run(Rehearsed(Halving(weighting=BySeconds()))), data)
    assert changed.algorithm == Rehearsed(Halving(weighting=BySeconds(), share=0.1))


def test_a_yaml_file_may_put_a_stranger_s_class_in_the_place_of_another() -> None:
    changed = overlay(Run(Rehearsed(FedAvg(server=Adam()))), {"algorithm": {"rehearsed": {"inner": HALVING}}})
    assert changed.algorithm == Rehearsed(Halving())


def test_a_stranger_s_class_in_an_experiment_is_stored_and_found_again() -> None:
    experiment = Experiment("tiny", runs={"mine": Run(Halving(), start_run="")})
    assert from_dict(Experiment, to_dict(experiment)) == experiment


def test_an_unknown_field_of_a_stranger_s_class_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"algorithm\.inner: unknown key 'shares'; did you mean 'share'"):
        override(Run(Rehearsed(Halving())), ["algorithm.inner.shares=1"])


def test_the_old_name_of_a_field_is_read_as_the_new_one() -> None:
    assert from_dict(Run, {"algorithm": {HALVING: {"fraction": 0.3}}}).algorithm == Halving(share=0.3)


def test_the_old_name_of_a_field_can_be_set_on_the_command_line() -> None:
    assert override(Run(Halving()), ["algorithm.fraction=0.3"]).algorithm == Halving(share=0.3)


def test_the_old_name_of_a_field_may_be_in_a_yaml_file_that_is_laid_over() -> None:
    assert overlay(Run(Halving()), {"algorithm": {"fraction": 0.3}}).algorithm == Halving(share=0.3)


def test_a_field_by_its_old_and_its_new_name_at_once_is_refused() -> None:
    with pytest.raises(ValueError, match="'fraction' is the old name of 'share': set one of them"):
        from_dict(Run, {"algorithm": {HALVING: {"fraction": 0.3, "share": 0.2}}})


def test_what_is_stored_has_the_new_name_of_a_field() -> None:
    assert "fraction" not in to_dict(Run(Halving()))["algorithm"][HALVING]


# --- What is stored -------------------------------------------------------------------------------


def test_a_class_that_a_stranger_s_module_registers_is_stored_by_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process does not import the module before it looks for the name."""
    list(ALGORITHMS)  # the package's own are registered before the copy is made
    monkeypatch.setattr(ALGORITHMS, "_registered", dict(ALGORITHMS._registered))
    ALGORITHMS.register(Quartering)
    assert ALGORITHMS["quartering"] is Quartering
    written = to_dict(Run(Quartering()))["algorithm"]
    assert list(written) == ["foreign_choices:Quartering"]
    assert from_dict(Run, {"algorithm": written}).algorithm == Quartering()


def test_an_entry_point_with_the_name_of_the_package_s_own_choice_is_stored_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name means another class."""
    install(tmp_path, "antiphon.algorithms", "fed_avg = foreign_choices:Halving")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(to_dict(Run(Halving()))["algorithm"]) == [HALVING]


def test_a_subclass_in_a_field_that_takes_one_class_is_refused_when_it_is_stored() -> None:
    """It would come back as the class itself."""

    @dataclass(frozen=True)
    class Other(FedAvg):
        pass

    with pytest.raises(ValueError, match=r"Other\(.* cannot be stored: expected the fields of fed_avg"):
        to_dict(Run(GeometricMedian(Other())))


def test_a_class_that_is_not_in_a_closed_union_is_refused_when_it_is_stored() -> None:
    with pytest.raises(ValueError, match=r"Alternating\(.* cannot be stored: expected one of frozen_seed, "):
        to_dict(Run(SelfTrained(teacher=Alternating())))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "choice"),
    [
        ("runs.a.algorithm.client_schedule", Alternating()),
        ("runs.a.algorithm.clipping", Signs()),
        ("runs.a.clients", EvenAndOdd()),
        ("model.encoder", Averages()),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_schedules_clippings_partitions_and_encoders_of_strangers_are_chosen_and_stored(
    place: str, choice: Any
) -> None:
    path = f"foreign_choices:{type(choice).__name__}"
    experiment = override(Experiment(runs={"a": Run(start_run="")}), [f"{place}={path}"])
    stored = yaml.safe_load(yaml.safe_dump(to_dict(experiment)))
    assert f"{path}:" in yaml.safe_dump(stored)
    chosen: Any = from_dict(Experiment, stored)
    for name in place.split("."):
        chosen = chosen[name] if isinstance(chosen, dict) else getattr(chosen, name)
    assert chosen == choice


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("ShortRound", r"'foreign_choices:ShortRound' .* it has no round\(self, state, cohort, pool\)"),
        ("OnlyForTypeCheckers", r"the fields of foreign_choices:OnlyForTypeCheckers cannot be read"),
        ("WithFolder", r"algorithm.folder: PosixPath\('models'\) cannot be stored: settings are numbers"),
    ],
)
def test_an_algorithm_that_does_not_fit_is_refused_and_what_is_missing_is_named(
    setting: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        override(Run(), [f"algorithm=foreign_choices:{setting}"])


def test_a_weighting_that_cannot_be_called_is_refused() -> None:
    """Every class can be called, to make an object of it."""
    with pytest.raises(ValueError, match=r"'foreign_choices:NoCall' .* it has no __call__"):
        override(Run(), ["algorithm.weighting=foreign_choices:NoCall"])


def test_a_view_that_nobody_registered_is_refused_when_it_is_used() -> None:
    with pytest.raises(ValueError, match=r"Silent is not registered: .* of the group antiphon.client_views"):
        through(Task("train"), Silent())


@dataclass(frozen=True)
class Silent(View):
    """Does nothing, and is not registered."""


def test_a_dataclass_that_is_not_frozen_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'foreign_choices:Thawed' .* it has no frozen fields \(decorate"):
        to_dict(Run(Thawed()))  # type: ignore[arg-type]


# --- What another process could not find again ----------------------------------------------------


def test_a_class_inside_a_function_is_refused_when_it_is_stored() -> None:
    @dataclass(frozen=True)
    class Local(Halving):
        pass

    with pytest.raises(ValueError, match=r"<locals>\.Local cannot be stored: a resumed run"):
        to_dict(Run(Rehearsed(Local())))


def test_a_class_inside_a_function_is_refused_whatever_its_fields_are() -> None:
    @dataclass(frozen=True)
    class Inside:
        size: int = 1

    @dataclass(frozen=True)
    class Local(Halving):
        inside: Inside = Inside()  # a name that only this function knows

    with pytest.raises(ValueError, match=r"<locals>\.Local cannot be stored"):
        to_dict(Run(Local()))


def test_a_class_of_a_script_is_refused_when_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Halving, "__module__", "__main__")
    with pytest.raises(ValueError, match=r"__main__:Halving cannot be stored.* Define the class at the top"):
        to_dict(Run(Halving()))


def test_a_class_that_is_not_of_the_kind_is_refused_when_it_is_stored() -> None:
    with pytest.raises(ValueError, match=r"'foreign_choices:NoRound' cannot be used .* it has no round"):
        to_dict(Run(NoRound()))  # type: ignore[arg-type]


def test_an_object_that_is_no_dataclass_is_refused_when_it_is_stored() -> None:
    with pytest.raises(ValueError, match=r"Plain object .* one of antiphon\.algorithms must be a dataclass"):
        to_dict(Run(Plain()))  # type: ignore[arg-type]


def test_a_lambda_as_weighting_is_refused_when_it_is_stored() -> None:
    with pytest.raises(ValueError, match=r"<lambda> .*one of antiphon\.weightings must be a dataclass"):
        to_dict(Run(FedAvg(weighting=lambda report: 0.0)))


def test_a_lambda_as_weighting_trains_where_nothing_is_stored() -> None:
    assert FedAvg(weighting=lambda report: 0.0).weighting(None) == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "algorithm",
    [Plain(), Thawed(), NoRound(), FedAvg(weighting=lambda report: 0.0)],
    ids=["no dataclass", "not frozen", "no round", "lambda"],
)
def test_what_cannot_be_stored_is_refused_before_the_corpus_is_opened(algorithm: Any, tmp_path: Path) -> None:
    experiment = Experiment(runs={"a": Run(algorithm, start_run="")})
    with pytest.raises(ValueError, match=r"cannot be (stored|used)"):
        run_experiment(experiment, tmp_path / "no-corpus", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrappers_in_the_wrong_order_are_refused_when_the_run_is_read() -> None:
    with pytest.raises(ValueError, match=r"rehearsed around federated_pruning: .* write federated_pruning"):
        override(Run(Rehearsed()), ["algorithm.inner=federated_pruning"])


# --- What comes over the wire ---------------------------------------------------------------------


@pytest.mark.parametrize("registry", [CLIENT_WORK, CLIENT_VIEWS], ids=["work", "views"])
def test_what_a_task_names_is_never_imported_by_a_path(registry: Registry) -> None:
    assert "foreign_choices:work" not in registry
    with pytest.raises(ValueError, match="unknown choice 'foreign_choices:work'"):
        registry["foreign_choices:work"]


def test_client_work_of_an_installed_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "antiphon.client_work", "stranger.work = foreign_choices:work")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotImplementedError):
        CLIENT_WORK["stranger.work"](Task("stranger.work"), None)


def test_client_work_need_not_be_a_dataclass() -> None:
    assert callable(CLIENT_WORK["train"])


# --- New kinds ------------------------------------------------------------------------------------


class Sound:
    """A kind, as it stands in annotations."""


@dataclass(frozen=True)
class Concert:
    first: Sound = Tone()  # type: ignore[assignment]
    encore: Sound | None = None


@pytest.fixture
def open_sounds(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr("antiphon.registry.REGISTRIES", registries := {})
    monkeypatch.setattr("antiphon.config.REGISTRIES", registries)
    return sounds(default="tone", kind=Sound)


@pytest.mark.usefixtures("open_sounds")
def test_a_field_of_an_open_kind_takes_every_choice_of_its_registry() -> None:
    assert from_dict(Concert, {"first": {"noise": {"loudness": 1}}}) == Concert(Noise(1.0))  # type: ignore[arg-type]


@pytest.mark.usefixtures("open_sounds")
def test_a_field_of_an_open_kind_may_be_null() -> None:
    assert to_dict(Concert())["encore"] is None
    assert from_dict(Concert, {"encore": None}) == Concert()


@pytest.mark.usefixtures("open_sounds")
def test_fields_without_a_name_are_those_of_the_default_choice() -> None:
    assert from_dict(Concert, {"first": {"pitch": 3}}) == Concert(Tone(3))  # type: ignore[arg-type]
