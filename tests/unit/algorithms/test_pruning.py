"""Algorithm 1 on a model of three small matrices: phases, masks, revival, and what never moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from cautious import Cautious, Twice
from world import LOCAL, MODELS, Case, World, assert_same, run_rounds, start

from antiphon.algorithms.central import Central
from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.fedavg import FedAvg, dga, hierarchical
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.algorithms.pruning import (
    ConstantSparsity,
    FederatedPruning,
    PrunedState,
    StepSparsity,
    prunable_algorithm,
)
from antiphon.algorithms.pruning_scores import Adaptive, ByMomentum, ByProduct
from antiphon.algorithms.pruning_slices import HalfColumn, HalfRow
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.algorithms.scaffold import Scaffold
from antiphon.algorithms.self_training import SelfTrained
from antiphon.core import Collected, Report, ServerState, Task, Tensors, Update, Weigh
from antiphon.models.reduced import structure_of
from antiphon.pools.local import LocalPool
from antiphon.records import checkpoint
from antiphon.server.optimizers import Adam, Sgd
from antiphon.server.run_context import RunContext, prepare
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.prunable_layers import LinearLayer
from antiphon.tasks.submodel import Submodel, SubmodelView, masked, shrink
from antiphon.tasks.views import views_of

STRUCTURE = (
    LinearLayer("encoder.layers.0.first", 4, 3, feeds="encoder.layers.0.second"),
    LinearLayer("encoder.layers.0.second", 3, 4),
    LinearLayer("encoder.layers.0.other", 4, 4),
)
OTHER = "encoder.layers.0.other.weight"
Change = Callable[[str, torch.Tensor], torch.Tensor]


@dataclass
class Toy:
    """A pool whose clients all answer with the same change of each small tensor; it keeps the tasks."""

    change: Change = lambda name, tensor: torch.full_like(tensor, 0.1)
    tasks: list[Task] = field(default_factory=list)

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        self.tasks.append(task)
        reports = tuple(Report(client, {"loss": 1.0, "num_utterances": 1.0}) for client in cohort)
        return Update({name: self.change(name, t) for name, t in task.tensors.items()}, reports=reports)

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        raise NotImplementedError


def params() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    shapes = {f"{layer.name}.weight": (layer.num_outputs, layer.num_inputs) for layer in STRUCTURE}
    shapes |= {"encoder.layers.0.first.bias": (4,), "norm": (3,)}  # type: ignore[dict-item]
    return {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}


def pruning(inner: FedAvg | Rehearsed = FedAvg(server=Sgd()), **settings: object) -> FederatedPruning:
    usual = {"mask_every": 2, "fine_tune_from": 6, "structure": STRUCTURE}
    return FederatedPruning(inner, **{**usual, **settings})  # type: ignore[arg-type]


def play(algorithm: FederatedPruning, pool: Toy, rounds: int) -> list[PrunedState]:
    states = [algorithm.init(params())]
    for _ in range(rounds):
        states.append(algorithm.round(states[-1], ["a", "b"], pool)[0])
    return states


# --- Phases ---------------------------------------------------------------------------------------


def test_a_constant_schedule_is_at_its_target_at_once_and_a_step_schedule_climbs() -> None:
    assert [ConstantSparsity()(0.5, mask) for mask in range(3)] == [0.5] * 3
    assert [StepSparsity(2)(0.5, mask) for mask in range(4)] == [0.0, 0.25, 0.5, 0.5]
    algorithm = pruning(schedule=StepSparsity(2))
    states = play(algorithm, Toy(), 7)
    assert [state.sparsity for state in states[1:]] == [0, 0, 0.25, 0.25, 0.5, 0.5, 0.5]


def test_the_server_keeps_the_large_model_until_fine_tuning_and_then_has_the_small_one() -> None:
    pool = Toy()
    states = play(pruning(), pool, 8)
    large = {name: p.shape for name, p in params().items()}
    small = {name: p.shape for name, p in states[-1].params.items()}
    assert [state.is_small for state in states] == [False] * 6 + [True] * 3
    assert [state.is_result for state in states] == [False] * 6 + [True] * 3
    assert {name: p.shape for name, p in states[5].params.items()} == large
    assert small["encoder.layers.0.first.weight"] == (2, 3)
    assert small["encoder.layers.0.first.bias"] == (2,)
    assert small["encoder.layers.0.second.weight"] == (1, 2)
    assert small[OTHER] == (2, 4)
    # Clients got the small model in every round, and were told what it is.
    for task in pool.tasks:
        assert {name: t.shape for name, t in task.tensors.items()} == small
        (view,) = views_of(task)
        assert isinstance(view, SubmodelView)
        assert view.submodel
    assert [views_of(task) for task in pool.tasks[6:]] == [[SubmodelView(states[6].submodel)]] * 2
    assert torch.equal(states[6].params[OTHER], shrink(states[6].params, Submodel())[OTHER])


def test_without_sparsity_it_is_the_inner_algorithm() -> None:
    inner = hierarchical(LOCAL, Adam())
    mine = play(pruning(inner, sparsity=0.0), Toy(), 7)[-1]
    state, pool = inner.init(params()), Toy()
    for _ in range(7):
        state, _ = inner.round(state, ["a", "b"], pool)
    assert_same(mine.params, state.params)
    assert_same(mine.inner.opt, state.opt)
    assert all(not views_of(task) for task in pool.tasks)


# --- What is removed does not move ----------------------------------------------------------------


SERVERS = {
    "adam": Adam(),
    "momentum": Sgd(lr=0.5, momentum=0.9),
    "nesterov": Sgd(lr=0.5, momentum=0.9, nesterov=True),
}


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS.keys())
def test_removed_weights_and_their_slots_rest(server: Adam | Sgd) -> None:
    """A step schedule: everything has moments by the time something is removed."""
    algorithm = pruning(FedAvg(server=server), schedule=StepSparsity(1), fine_tune_from=20)
    states = play(algorithm, Toy(), 4)
    submodel = Submodel.read(states[-1].submodel)
    mask = masked({name: torch.ones_like(p) for name, p in params().items()}, submodel)
    before, after = states[2], states[4]
    assert any(bool((m == 0).any()) for m in mask.values())
    groups = [(before.params, after.params)]
    old_opt, new_opt = before.inner.opt, after.inner.opt
    groups += [(old_opt[kind], new_opt[kind]) for kind in ("first", "second") if kind in old_opt]
    for old, new in groups:
        for name, m in mask.items():
            assert torch.equal(old[name][m == 0], new[name][m == 0]), name
            assert bool((old[name] != new[name])[m == 1].all()), name
    assert bool((old_opt["first"][OTHER][mask[OTHER] == 0] != 0).all())  # or there was nothing to move it


# --- Refinement -----------------------------------------------------------------------------------


def towards_zero(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Clients who want the weights they see to vanish."""
    return 0.9 * tensor


def test_a_removed_column_revives_when_those_in_use_become_smaller() -> None:
    algorithm = pruning(sparsity=0.5)
    states = play(algorithm, Toy(towards_zero), 5)
    first, second = (
        Submodel.read(state.submodel).layers["encoder.layers.0.other"] for state in (states[1], states[3])
    )
    assert first != second
    scores = params()[OTHER].abs().sum(dim=1)
    weak = scores.argsort()[:2].sort().values  # removed first: the other two come down to a hundredth
    small = shrink(states[2].params, Submodel.read(states[3].submodel))[OTHER]
    assert torch.equal(small, params()[OTHER][weak])  # with the values they had when they were removed
    _, metrics = algorithm.round(states[2], ["a", "b"], Toy(towards_zero))
    assert metrics["revived_weights"] > 0
    assert algorithm.round(states[1], ["a", "b"], Toy(towards_zero))[1]["revived_weights"] == 0


def test_without_refinement_what_is_removed_is_gone() -> None:
    states = play(pruning(refine=False), Toy(towards_zero), 6)
    assert len({state.submodel for state in states[1:]}) == 1
    mask = masked(
        {name: torch.ones_like(p) for name, p in params().items()}, Submodel.read(states[1].submodel)
    )
    assert bool((states[1].params[OTHER][mask[OTHER] == 0] == 0).all())


def test_without_refinement_masks_only_lose_on_the_way_up() -> None:
    states = play(pruning(refine=False, schedule=StepSparsity(2), mask_every=1), Toy(towards_zero), 4)
    ones = {name: torch.ones_like(p) for name, p in params().items()}
    masks = [masked(ones, Submodel.read(state.submodel))[OTHER] for state in states[1:]]
    for before, after in pairwise(masks):
        assert bool((after <= before).all())
    assert masks[-1].sum() < masks[1].sum() < masks[0].sum()


# --- Momentum -------------------------------------------------------------------------------------


def by_output(*deltas: list[float]) -> Change:
    """Clients with this Δ for each output of `other`; the rounds take turns."""
    turn = iter(range(1000))

    def change(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name != OTHER:
            return torch.full_like(tensor, 0.1)
        rows = torch.tensor(deltas[next(turn) % len(deltas)])
        return rows[:, None].expand(4, 4).clone() if len(tensor) == 4 else torch.full_like(tensor, 0.1)

    return change


def test_the_momentum_is_a_moving_average_of_the_size_of_delta() -> None:
    """Changes that take turns in their sign are large, although their mean is small (§2.2: magnitude)."""
    algorithm = pruning(score=ByMomentum(), momentum=0.5, fine_tune_from=20)
    states = play(algorithm, Toy(by_output([3.0, 1.0, 2.0, -4.0], [-3.0, 1.0, 2.0, 4.0])), 3)
    assert states[1].submodel == ""  # there is no momentum to go by yet
    sizes = torch.tensor([[3.0], [1.0], [2.0], [4.0]]).expand(4, 4)
    torch.testing.assert_close(states[1].momentum[OTHER], 0.5 * sizes)
    torch.testing.assert_close(states[2].momentum[OTHER], 0.75 * sizes)
    kept = shrink({OTHER: sizes}, Submodel.read(states[3].submodel))[OTHER]
    assert kept[:, 0].tolist() == [3.0, 4.0]  # the two that clients change most


def test_the_momentum_of_removed_weights_falls_for_they_have_no_gradient() -> None:
    """By hand, §2.3: 0.75 · (1, 2) after two rounds, then half of it in each round without these weights."""
    algorithm = pruning(score=ByMomentum(), momentum=0.5, fine_tune_from=20)
    states = play(algorithm, Toy(by_output([3.0, 1.0, 2.0, 4.0])), 4)
    for state, (removed, used) in zip(states[3:], [(0.375, 1.175), (0.1875, 0.6375)], strict=True):
        torch.testing.assert_close(state.momentum[OTHER][1], torch.full((4,), removed))
        torch.testing.assert_close(state.momentum[OTHER][2], torch.full((4,), 2 * removed))
        torch.testing.assert_close(state.momentum[OTHER][0], torch.full((4,), used))  # Δ = 0.1 from now on


def test_removed_weights_do_not_come_back_by_a_stale_momentum() -> None:
    """Weights in use change less in each round; with a momentum that rests, removed ones come back."""
    algorithm = pruning(score=ByMomentum(), momentum=0.5, mask_every=2, fine_tune_from=20)
    states = play(algorithm, Toy(by_output([3.0, 1.0, 2.0, 4.0])), 12)
    assert len({state.submodel for state in states[3:]}) == 1


def test_the_momentum_is_of_clients_not_of_rehearsal() -> None:
    inner = Rehearsed(FedAvg(server=Sgd()), LocalTraining(steps=1))
    pool = Toy()
    states = play(pruning(inner, score=ByMomentum(), momentum=0.0), pool, 1)
    assert len(pool.tasks) == 2
    torch.testing.assert_close(states[1].momentum[OTHER], torch.full((4, 4), 0.1))


# --- On speech, with a checkpoint in the middle ---------------------------------------------------


def everything(structure: tuple[object, ...]) -> FederatedPruning:
    return FederatedPruning(
        Rehearsed(hierarchical(LOCAL), LocalTraining(lr=0.02, steps=1, batch_seconds=1.5)),
        pattern=HalfColumn(),
        score=ByProduct(),
        allocation=Adaptive(),
        schedule=StepSparsity(2),
        mask_every=1,
        fine_tune_from=4,
        structure=structure,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("model", ["ctc", "las"])
def test_resuming_in_any_phase_is_exact(model: str, world: World, tmp_path: Path) -> None:
    built = MODELS[model].build(8, world.tokens.size)
    case = Case(everything(structure_of(built)))
    clients = world.clients()
    state, straight = start(case, world.params(model)), []
    pool = LocalPool(world.worker(clients, world.runtime(model)))
    for _ in range(5):
        state = run_rounds(case, state, list(clients), pool, 1)
        straight.append(state)
    for round in (2, 4):  # while the sparsity climbs; just after the model was made small
        checkpoint.save(tmp_path / str(round), straight[round - 1], {})
        restored, _ = checkpoint.load(tmp_path / str(round), start(case, world.params(model)))
        again = LocalPool(world.worker(clients, world.runtime(model)))
        assert_same(run_rounds(case, restored, list(clients), again, 5 - round), straight[-1])
    assert straight[-1].is_small
    assert set(straight[-1].inner.opt["first"]) == set(straight[-1].params)


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5, float("nan")])
def test_a_sparsity_is_a_share_below_one(sparsity: float) -> None:
    with pytest.raises(ValueError, match="sparsity is a share of at least 0 and below 1"):
        FederatedPruning(sparsity=sparsity)


def test_a_layer_that_would_lose_everything_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match=r"encoder.layers.0.first would lose every unit \(4 of 4\)"):
        pruning(sparsity=0.95).init(params())


def test_a_structure_of_another_model_is_refused_by_the_layer_s_name() -> None:
    wrong = (*STRUCTURE[:2], LinearLayer("encoder.layers.0.other", 6, 4))
    expected = r"encoder.layers.0.other: a weight of \(6, 4\) was expected, but the model has \(4, 4\)"
    with pytest.raises(ValueError, match=expected):
        pruning(structure=wrong).init(params())


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="reached in round 40: fine_tune_from must be above that, not 40"):
        FederatedPruning(schedule=StepSparsity(4))
    with pytest.raises(ValueError, match="multiple must be at least 1, not 0"):
        FederatedPruning(multiple=0)
    with pytest.raises(ValueError, match="mask_every must be at least 1"):
        FederatedPruning(mask_every=0)
    with pytest.raises(ValueError, match=r"'decoder\.\*' matches no layer that can be pruned"):
        pruning(layers=("decoder.*",)).init(params())
    with pytest.raises(ValueError, match="are all excluded: there is nothing to prune"):
        pruning(exclude=("*",)).init(params())
    with pytest.raises(ValueError, match="at least 1 step"):
        StepSparsity(0)
    with pytest.raises(
        ValueError, match="federated_pruning around federated_pruning: a model is pruned once"
    ):
        prepare(FederatedPruning(FederatedPruning()), RunContext(structure=lambda: STRUCTURE))
    unprepared = replace(pruning(), structure=())
    with pytest.raises(
        ValueError, match=r"does not know the model.s layers: call run_context\.prepare first"
    ):
        unprepared.round(PrunedState(ServerState(0, params())), ["a"], Toy())


def test_the_layers_of_the_model_are_known_once_a_run_is_prepared() -> None:
    ready = prepare(replace(pruning(), structure=()), RunContext(structure=lambda: STRUCTURE))
    assert ready == pruning()


def test_layers_that_are_excluded_stay_whole() -> None:
    states = play(pruning(layers=("encoder.*",), exclude=("*.other",), pattern=HalfRow()), Toy(), 1)
    assert set(Submodel.read(states[1].submodel).layers) == {
        "encoder.layers.0.first",
        "encoder.layers.0.second",
    }


# --- What clients do when a finished run is pruned ------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FedAvg(LOCAL), FedAvg(LOCAL)),
        (Scaffold(LOCAL), Scaffold(LOCAL)),
        (Cautious(), Cautious()),
        (Twice(Rehearsed(DgaRl(dga(LOCAL)))), Twice(Rehearsed(dga(LOCAL)))),
        (GeometricMedian(hierarchical(LOCAL)), hierarchical(LOCAL)),
        (SelfTrained(Rehearsed(Cautious())), Rehearsed(Cautious())),
        (Central(), None),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_clients_train_as_in_the_run_that_is_pruned(before: object, after: object) -> None:
    """Also if its algorithm is somebody else's; without rules that compare or combine whole updates."""
    assert prunable_algorithm(before) == after
