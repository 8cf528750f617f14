from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from antiphon.core import Diverged
from antiphon.server.optimizers import Adagrad, Adam, Lamb, Lars, ServerOptimizer, Sgd, Yogi

SHAPES = {"weight": (5, 3), "bias": (3,), "scalar": ()}
EVERY: list[ServerOptimizer] = [
    Sgd(),
    Sgd(momentum=0.9),
    Sgd(momentum=0.9, nesterov=True),
    Adam(),
    Yogi(),
    Adagrad(),
    Lamb(weight_decay=0.01),
    Lars(weight_decay=0.01),
]


def draw(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()}


def after_steps(optimizer: ServerOptimizer, num_steps: int, dtype: torch.dtype = torch.float32):
    params, opt = draw(0, dtype), None
    for step in range(num_steps):
        params, opt = optimizer(params, draw(step + 1, dtype), opt)
    return params, opt


def torch_after_steps(make, num_steps: int):
    leaves = {name: torch.nn.Parameter(value) for name, value in draw(0).items()}
    optimizer = make(leaves.values())
    for step in range(num_steps):
        for name, value in draw(step + 1).items():
            leaves[name].grad = value
        optimizer.step()
    return {name: leaf.detach() for name, leaf in leaves.items()}


@pytest.mark.parametrize(
    ("ours", "make"),
    [
        (Sgd(0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
        (Sgd(0.3, 0.9), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)),
        (Sgd(0.3, 0.9, True), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True)),
        (Adam(0.1, 0.9, 0.99, 1e-3), lambda p: torch.optim.Adam(p, 0.1, (0.9, 0.99), 1e-3)),
        (Adam(0.1, 0.3, 0.999, 1e-8), lambda p: torch.optim.Adam(p, 0.1, (0.3, 0.999), 1e-8)),
        (Adagrad(0.1, 1e-3), lambda p: torch.optim.Adagrad(p, 0.1, eps=1e-3)),
    ],
)
def test_agrees_with_torch_optim_bit_for_bit(ours, make):
    mine, _ = after_steps(ours, 20)
    theirs = torch_after_steps(make, 20)
    for name in SHAPES:
        assert torch.equal(mine[name], theirs[name]), name


def scalar_yogi(x, g, m, v, t, o):
    m = o.beta1 * m + (1 - o.beta1) * g
    v = v - (1 - o.beta2) * g * g * np.sign(v - g * g)
    return x - o.lr * m / (np.sqrt(v) + o.epsilon), m, v


def scalar_lamb(x, g, m, v, t, o):
    m = o.beta1 * m + (1 - o.beta1) * g
    v = o.beta2 * v + (1 - o.beta2) * g * g
    r = (m / (1 - o.beta1**t)) / (np.sqrt(v / (1 - o.beta2**t)) + o.epsilon) + o.weight_decay * x
    return x - o.lr * np.sqrt((x**2).sum()) / np.sqrt((r**2).sum()) * r, m, v


def scalar_lars(x, g, m, v, t, o):
    norm_x, norm_g = np.sqrt((x**2).sum()), np.sqrt((g**2).sum())
    rate = o.trust * norm_x / (norm_g + o.weight_decay * norm_x)
    m = o.momentum * m + o.lr * rate * (g + o.weight_decay * x)  # lr inside, as the paper has it
    return x - m, m, v


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (Yogi(), scalar_yogi),
        (Lamb(0.02), scalar_lamb),
        (Lamb(0.02, weight_decay=0.1), scalar_lamb),
        (Lars(2.0), scalar_lars),
        (Lars(2.0, 0.8, 0.02, 0.1), scalar_lars),
    ],
)
def test_agrees_with_the_formulas_of_its_paper_in_numpy(optimizer, rule):
    mine, _ = after_steps(optimizer, 12, torch.float64)
    for name in SHAPES:
        x, m, v = draw(0, torch.float64)[name].numpy(), 0.0, 0.0
        for step in range(12):
            g = draw(step + 1, torch.float64)[name].numpy()
            x, m, v = rule(x, g, m, v, step + 1, optimizer)
        np.testing.assert_allclose(mine[name].numpy(), x, rtol=1e-12, atol=1e-14)


def test_lamb_moves_a_tensor_by_lr_times_its_norm_in_the_direction_of_adam():
    # First step: debiased m/sqrt(v) is the sign, (1, -1) with norm sqrt 2; the weight's norm is 5.
    params, _ = Lamb(lr=0.1, epsilon=0.0)(
        {"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([0.2, -7.0])}, None
    )
    step = 0.1 * 5 / math.sqrt(2)
    torch.testing.assert_close(params["w"], torch.tensor([3.0 - step, 4.0 + step]))


def test_lars_moves_a_tensor_by_trust_times_its_norm_along_delta():
    # Norms 5 and 10: the local rate is 0.01 * 5 / 10 = 0.005.
    start, delta = {"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([6.0, 8.0])}
    params, opt = Lars(lr=1.0, momentum=0.5, trust=0.01)(start, delta, None)
    torch.testing.assert_close(params["w"], torch.tensor([2.97, 3.96]))
    # Then norms 4.95 and 10: rate 0.00495; velocity 0.5*(0.03, 0.04) + (0.0297, 0.0396).
    params, _ = Lars(lr=1.0, momentum=0.5, trust=0.01)(params, delta, opt)
    torch.testing.assert_close(params["w"], torch.tensor([2.97 - 0.0447, 3.96 - 0.0596]))


@pytest.mark.parametrize("optimizer", [Lamb(), Lars()])
def test_a_tensor_of_zeros_can_leave_zero(optimizer):
    params, _ = optimizer({"w": torch.zeros(2)}, {"w": torch.tensor([0.5, -0.5])}, None)
    assert (params["w"] * torch.tensor([-1.0, 1.0]) > 0).all()


@pytest.mark.parametrize("optimizer", [Adam(), Yogi(), Adagrad(), Lamb(), Lars()])
def test_a_delta_of_zero_moves_nothing(optimizer):
    params, _ = optimizer({"w": torch.ones(2)}, {"w": torch.zeros(2)}, None)
    assert torch.equal(params["w"], torch.ones(2))


def test_sgd_with_lr_one_gives_the_mean_of_the_clients_models():
    params, opt = Sgd()({"w": torch.tensor([3.0])}, {"w": torch.tensor([3.0 - 5.0])}, None)
    assert params["w"].item() == 5.0
    assert opt == {"step": 1}


def block_momentum(averages, start: float, eta: float, zeta: float, nesterov: bool) -> list[float]:
    """BMUF as Chen & Huo (2016) print it: the model each next block starts from."""
    theta, model, change, history = start, start, 0.0, []
    for average in averages:  # what workers that start from `model` average to, less `model`
        change = eta * change + zeta * average
        theta = theta + change
        model = theta + eta * change if nesterov else theta
        history.append(model)
    return history


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_the_block_momentum_of_bmuf(nesterov):
    averages = [0.5, -0.25, 1.0, 0.125]
    params, opt, history = {"w": torch.tensor([2.0], dtype=torch.float64)}, None, []
    for average in averages:
        delta = {"w": torch.tensor([-average], dtype=torch.float64)}
        params, opt = Sgd(lr=0.8, momentum=0.75, nesterov=nesterov)(params, delta, opt)
        history.append(params["w"].item())
    assert history == pytest.approx(block_momentum(averages, 2.0, 0.75, 0.8, nesterov), abs=1e-14)


def test_classical_block_momentum_by_hand():
    # Block changes 1, then 0.5*1 + 1 = 1.5: 0 -> 1 -> 2.5.
    params, opt = Sgd(momentum=0.5)({"w": torch.zeros(1)}, {"w": -torch.ones(1)}, None)
    params, opt = Sgd(momentum=0.5)(params, {"w": -torch.ones(1)}, opt)
    assert params["w"].item() == 2.5


@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_nothing_given_is_changed_or_shared(optimizer):
    params, opt = after_steps(optimizer, 2)
    delta = draw(9)
    kept = copy.deepcopy((params, delta, opt))
    new_params, new_opt = optimizer(params, delta, opt)
    given = [*params.values(), *delta.values(), *moments(opt)]
    for tensor in [*new_params.values(), *moments(new_opt)]:
        assert tensor.data_ptr() not in {other.data_ptr() for other in given}
        tensor.zero_()
    assert_same((params, delta, opt), kept)


@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_the_first_state_shares_nothing_with_the_delta(optimizer):
    delta = draw(1)
    _, opt = optimizer(draw(0), delta, None)
    assert not {t.data_ptr() for t in moments(opt)} & {t.data_ptr() for t in delta.values()}


@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_two_candidates_from_one_state_do_not_disturb_each_other(optimizer):
    params, opt = after_steps(optimizer, 2)
    alone = optimizer(params, draw(5), opt)
    optimizer(params, draw(6), opt)
    assert_same(optimizer(params, draw(5), opt), alone)


@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_parameters_outside_the_delta_stay_and_have_no_state(optimizer):
    params, delta = draw(0), {"bias": draw(1)["bias"]}
    new, opt = optimizer(params, delta, None)
    new, opt = optimizer(new, delta, opt)
    assert list(new) == list(params)
    assert new["weight"] is params["weight"]
    assert not torch.equal(new["bias"], params["bias"])
    assert all(set(value) == {"bias"} for key, value in opt.items() if key != "step")
    assert opt["step"] == 2


@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_scale_multiplies_the_learning_rate(optimizer):
    params, opt = after_steps(optimizer, 2, torch.float64)
    halved = type(optimizer)(**{**vars(optimizer), "lr": optimizer.lr * 0.5})
    assert_same(
        optimizer(params, draw(7, torch.float64), opt, 0.5), halved(params, draw(7, torch.float64), opt)
    )


def test_a_delta_that_does_not_fit_is_refused_by_name():
    with pytest.raises(ValueError, match="'other'"):
        Sgd()(draw(0), {"other": torch.zeros(3)}, None)
    with pytest.raises(ValueError, match=r"'bias' has shape \(1,\).*\(3,\)"):
        Sgd()(draw(0), {"bias": torch.zeros(1)}, None)
    with pytest.raises(ValueError, match="no client's update arrived"):
        Sgd()(draw(0), {}, None)


def test_a_state_for_other_parameters_or_of_another_optimizer_is_refused():
    _, opt = Adam()(draw(0), {"bias": torch.zeros(3)}, None)
    with pytest.raises(ValueError, match="state is not for these parameters"):
        Adam()(draw(0), draw(1), opt)
    _, opt = Sgd(momentum=0.9)(draw(0), draw(1), None)
    with pytest.raises(ValueError, match="'second' differs"):
        Adam()(draw(0), draw(1), opt)


@pytest.mark.parametrize("lr", [1e38, 1e39, 1e300])
@pytest.mark.parametrize("optimizer", [Sgd, Adam, Yogi, Adagrad, Lamb, Lars])
def test_a_step_that_diverges_names_the_optimiser_and_its_settings(optimizer, lr):
    params, delta = {"w": torch.ones(3)}, {"w": torch.tensor([0.5, -4e3, 2.0])}
    with pytest.raises(Diverged, match=rf"updates that are finite.*server: {optimizer.__name__}\(lr=1e\+"):
        optimizer(lr=lr)(params, delta, None, scale=0.5)


def test_an_error_of_torch_that_is_no_overflow_is_not_taken_for_a_divergence():
    with pytest.raises(RuntimeError, match="not on the expected device"):
        Sgd()({"w": torch.ones(3)}, {"w": torch.ones(3, device="meta")}, None)


def test_settings_that_cannot_work_are_refused():
    for make in (
        lambda: Sgd(lr=0.0),
        lambda: Sgd(nesterov=True),
        lambda: Adam(beta2=1.0),
        lambda: Adam(epsilon=-1.0),
        lambda: Lars(weight_decay=math.nan),
    ):
        with pytest.raises(ValueError):
            make()


def moments(opt) -> list[torch.Tensor]:
    return [tensor for key, value in opt.items() if key != "step" for tensor in value.values()]


def assert_same(left, right) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0)


LINEAR = [  # with a large epsilon, the divisor of a step is the same in all steps
    Sgd(lr=0.1),
    Sgd(lr=0.1, momentum=0.8),
    Sgd(lr=0.1, momentum=0.8, nesterov=True),
    Adam(epsilon=1e9),
    Yogi(beta1=0.7, epsilon=1e9),
    Adagrad(epsilon=1e9),
    Lamb(epsilon=1e9, beta1=0.8),
    Lars(lr=0.1, momentum=0.8),
]


@pytest.mark.parametrize("optimizer", LINEAR, ids=lambda o: f"{type(o).__name__}, {vars(o)}")
@pytest.mark.parametrize("step", [1, 2, 5])
def test_the_lasting_effect_is_that_of_one_delta_on_all_later_steps(
    optimizer: ServerOptimizer, step: int
) -> None:
    """Brute force: two runs that differ in one delta, after that step and 200 steps later.

    The parameter is set back to 0 before each step, so that LAMB and LARS take it with a ratio of 1.
    """
    runs: dict[float, list[float]] = {}
    for change in (0.0, 1e-3):
        place, opt, runs[change] = 0.0, None, []
        for number in range(1, step + 200):
            delta = 1.0 + (change if number == step else 0.0)
            still = {"w": torch.zeros(1, dtype=torch.float64)}
            moved, opt = optimizer(still, {"w": torch.tensor([delta], dtype=torch.float64)}, opt)
            place += float(moved["w"])
            runs[change].append(place)
    apart = [one - other for one, other in zip(runs[0.0], runs[1e-3], strict=True)]
    found = optimizer.lasting_effect(step)  # type: ignore[attr-defined]
    assert found == pytest.approx(apart[-1] / apart[step - 1], rel=1e-6)


def test_the_lasting_effect_of_adam_is_three_in_the_first_round_and_approaches_ten() -> None:
    """1 / (1 − β1) = 10 without the bias correction, which makes the first steps large."""
    factors = [Adam().lasting_effect(step) for step in (1, 10, 1000)]
    assert factors == pytest.approx([3.009, 8.115, 10.0], abs=1e-3)
    assert Yogi().lasting_effect(1) == pytest.approx(10.0)  # it has none
