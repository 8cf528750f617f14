"""Federated dropout: means over entries by hand, classes, drawn submodels, and a round written out."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from world import CONTEXT, LOCAL, STRUCTURE, World, recording

from antiphon import config
from antiphon.algorithms.compressed import Compressed
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.federated_dropout import (
    Answered,
    DeviceClass,
    FederatedDropout,
    class_of,
    entry_mean,
)
from antiphon.algorithms.pruning import FederatedPruning
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Report, Task, Update
from antiphon.pools.local import LocalPool
from antiphon.server.run_context import check_order, prepare
from antiphon.server.weighting import ByExamples
from antiphon.tasks.submodel import Block, Submodel, SubmodelLinear, SubmodelPool, expand, shrink

FIRST_ROW = Submodel({"a": SubmodelLinear((Block("", "2:80"),), "", "2:80")})
WHOLE = Submodel()
NAMES = [f"speaker/{number}" for number in range(2000)]


def answered(submodel: Submodel, values: list[list[float]], weight: float, client: str) -> Answered:
    report = Report(client, {})
    return Answered(Update({"a.weight": torch.tensor(values)}, math.log(weight), (report,)), submodel)


def test_an_entry_is_averaged_over_those_who_trained_it_by_hand() -> None:
    """Row 0: (1·4 + 3·1) / 4 and (1·8 + 3·2) / 4; row 1 is that of the strong clients."""
    weak = answered(FIRST_ROW, [[4.0, 8.0]], 1.0, "weak")
    strong = answered(WHOLE, [[1.0, 2.0], [3.0, 4.0]], 3.0, "strong")
    found = entry_mean([strong, weak], {"a.weight": torch.zeros(2, 2)})
    torch.testing.assert_close(found.mean["a.weight"], torch.tensor([[1.75, 3.5], [3.0, 4.0]]))
    assert math.exp(found.log_weight) == pytest.approx(4.0)
    assert {report.client for report in found.reports} == {"weak", "strong"}


def test_entries_that_nobody_trained_do_not_move() -> None:
    found = entry_mean([answered(FIRST_ROW, [[4.0, 8.0]], 5.0, "weak")], {"a.weight": torch.ones(2, 2)})
    torch.testing.assert_close(found.mean["a.weight"], torch.tensor([[4.0, 8.0], [0.0, 0.0]]))


def test_huge_log_weights_do_not_overflow() -> None:
    weak = answered(FIRST_ROW, [[4.0, 8.0]], 1.0, "weak")
    strong = answered(WHOLE, [[2.0, 2.0], [3.0, 4.0]], 1.0, "strong")
    far = [Answered(a.update.with_log_weight(-5000.0), a.submodel) for a in (weak, strong)]
    torch.testing.assert_close(
        entry_mean(far, {"a.weight": torch.zeros(2, 2)}).mean["a.weight"],
        torch.tensor([[3.0, 5.0], [3.0, 4.0]]),
    )


# --- Classes and submodels ------------------------------------------------------------------------


def test_names_decide_the_class_and_shares_hold() -> None:
    classes = {"weak": DeviceClass(0.5), "weakest": DeviceClass(0.2, keep=0.25)}
    found = [class_of(name, classes, seed=3) for name in NAMES]
    assert found.count("weak") / len(NAMES) == pytest.approx(0.5, abs=0.04)
    assert found.count("weakest") / len(NAMES) == pytest.approx(0.2, abs=0.04)
    assert class_of("server/rehearsal", {"all": DeviceClass(1.0)}, 0) == ""
    assert found != [class_of(name, classes, seed=4) for name in NAMES]


def test_a_class_with_names_has_no_other_clients() -> None:
    classes = {"named": DeviceClass(names=("speaker/7",)), "weak": DeviceClass(0.5)}
    for seed in range(3):
        assert [name for name in NAMES if class_of(name, classes, seed) == "named"] == ["speaker/7"]
    alone = {"named": DeviceClass(names=("speaker/7",))}
    assert {class_of(name, alone, 0) for name in NAMES if name != "speaker/7"} == {""}
    FederatedDropout(classes={**classes, "others": DeviceClass(0.5)})  # their shares are 1 in all


def algorithm(**settings: Any) -> FederatedDropout:
    ready: FederatedDropout = prepare(FederatedDropout(FedAvg(LOCAL), **settings), CONTEXT)
    return ready


def test_each_round_and_class_has_units_of_its_own() -> None:
    """The Conformer's feed-forward modules have 64 hidden units in the tiny world."""
    dropout = algorithm(classes={"weak": DeviceClass(0.5, 0.5), "weakest": DeviceClass(0.5, 0.25)})
    texts = {
        dropout.draw_units(1, round, label).write() for round in range(3) for label in ("weak", "weakest")
    }
    assert len(texts) == 6
    assert (
        dropout.draw_units(1, 2, "weak")
        == dropout.draw_units(1, 2, "weak")
        != dropout.draw_units(2, 2, "weak")
    )
    shapes = {
        layer.name: (layer.num_outputs, layer.num_inputs) for layer in STRUCTURE if hasattr(layer, "feeds")
    }
    params = {f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    small = shrink(params, dropout.draw_units(1, 0, "weakest"))
    first = next(name for name in shapes if name.endswith("feed_forward_before.1"))
    second = first.removesuffix("1") + "4"
    hidden, width = shapes[first]
    assert small[f"{first}.weight"].shape == (hidden // 4, width)
    assert small[f"{second}.weight"].shape[1] == hidden // 4


# --- A round --------------------------------------------------------------------------------------


def test_a_round_is_the_mean_of_updates_of_submodels(world: World) -> None:
    """Each client alone, on its submodel; then each entry averaged over those who have it, n_k as weights."""
    params, alone = world.params(), LocalPool(SpeechWorker(world.runtime(), world.clients()))
    cohort = sorted(world.clients())[:3]
    weak = {cohort[0]: "weak", cohort[2]: "weakest"}
    classes = {
        label: DeviceClass(0.0, keep, tuple(name for name, of in weak.items() if of == label))
        for label, keep in (("weak", 0.5), ("weakest", 0.25))
    }
    dropout = algorithm(classes=classes, exclude=())
    state, pool = dropout.init(params).with_seed(11), recording(alone, cohort)
    after, _ = dropout.round(state, cohort, pool)
    assert not pool.failures

    sums = {name: torch.zeros_like(p) for name, p in params.items()}
    counts = {name: torch.zeros_like(p) for name, p in params.items()}
    plain = FedAvg(LOCAL)
    for client in cohort:
        label = weak.get(client)
        submodel = dropout.draw_units(11, 0, label) if label else Submodel()
        task = Task("train", shrink(params, submodel), plain.task(state).config)
        update = SubmodelPool(alone, submodel.write()).reduce(task, [client], ByExamples())
        weight = math.exp(update.log_weight)
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        own = expand({n: weight * t for n, t in update.mean.items()}, submodel, zeros)
        held = expand({n: torch.full_like(t, weight) for n, t in update.mean.items()}, submodel, zeros)
        sums = {name: sums[name] + own[name] for name in sums}
        counts = {name: counts[name] + held[name] for name in counts}
    for name, before in params.items():
        delta = torch.where(counts[name] > 0, sums[name] / counts[name].clamp(min=1e-9), 0.0)
        torch.testing.assert_close(after.params[name], before - delta, rtol=1e-5, atol=1e-7)
    sizes = {row.client: (row.bytes_down, row.bytes_up) for row in pool.rows}
    for way in (0, 1):
        assert sizes[cohort[2]][way] < sizes[cohort[0]][way] < sizes[cohort[1]][way]


def test_the_journal_says_what_share_of_the_model_each_class_has(world: World) -> None:
    dropout, params = algorithm(exclude=()), world.params()
    pool = LocalPool(SpeechWorker(world.runtime(), world.clients()))
    _, metrics = dropout.round(dropout.init(params).with_seed(1), ["speaker/s00"], pool)
    small = shrink(params, dropout.draw_units(1, 0, "weak"))
    count = sum(p.numel() for p in params.values())
    assert metrics["parameters_weak"] == sum(p.numel() for p in small.values()) / count


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": {}}, "needs a class"),
        ({"classes": {"weak": {"keep": 1.0}}}, "devices in no class keep all"),
        ({"classes": {"weak": {"keep": 0.0}}}, "above 0"),
        ({"classes": {"weak": {"share": 1.5}}}, "between 0 and 1"),
        ({"classes": {"weak": {"share": 0.6}, "weaker": {"share": 0.5}}}, r"add up to 1\.1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.from_dict(FederatedDropout, settings)


def test_what_does_not_fit_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="no client 'speaker/unknown'"):
        algorithm(classes={"weak": DeviceClass(names=("speaker/unknown",))})
    with pytest.raises(ValueError, match="matches no layer"):
        algorithm(layers=("decoder.*",)).init(world.params())
    with pytest.raises(ValueError, match="each class of devices has a sum of its own"):
        FederatedDropout().check_run(SimpleNamespace(secure_aggregation=object()))
    for wrapper in (Compressed(FederatedDropout()), FederatedPruning(FederatedDropout())):
        with pytest.raises(ValueError, match=r"write federated_dropout around compressed|once"):
            check_order(wrapper)
