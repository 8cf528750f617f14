"""Fine-tuning in the protocol of personalisation: against gradient steps taken by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from federated_lm import FineTuned, FineTuning, Texts

from antiphon.algorithms.fedavg import fedavg
from antiphon.core import size_in_bytes
from antiphon.data.tokens import Characters
from antiphon.decoding.nbest import Hypothesis, NBest
from antiphon.lm.neural_lm import NeuralLm, TransformerLmConfig, text_batch
from antiphon.tasks.local_training import LocalTraining

TOKENS = Characters(" abc")
LISTS = {"x": [("ab", "abc"), ("b a", "b"), ("cc", "c")], "y": [("a", "b"), ("bca", "ac")], "z": [("c", "a")]}
ENTRIES = [
    NBest(f"{client}{number}", tuple(map(Hypothesis, texts)), session=client)
    for client, lists in LISTS.items()
    for number, texts in enumerate(lists)
]
CLIENTS = {"x": (0, 1, 2), "y": (3, 4), "z": (5,)}
TEXTS = [hypothesis.text for entry in ENTRIES for hypothesis in entry.hypotheses]
LR = 0.2


@pytest.fixture
def lm() -> NeuralLm:
    torch.manual_seed(0)
    config = TransformerLmConfig(8, num_layers=1, num_heads=2, feed_forward_dim=12, dropout=0.0)
    return NeuralLm(config, TOKENS, config.build(0, TOKENS.size).double())


def test_a_text_has_a_frame_without_values_for_each_prediction() -> None:
    texts = Texts(["ab", "b"], TOKENS)
    assert texts.num_frames.tolist() == [3, 2]
    assert texts.features(0).shape == (3, 0)


def run(lm: NeuralLm, rounds: int, lr: float = LR) -> FineTuned:
    local = LocalTraining(lr, epochs=1, batch_seconds=0.0, clip_norm=0.0)
    return FineTuning(ENTRIES, CLIENTS, lm, fedavg(local)).run(rounds)


def stepped(lm: NeuralLm, places: tuple[int, ...]) -> NeuralLm:
    """After one step of gradient descent on the best texts of these lists."""
    model = copy.deepcopy(lm.model)
    batch = text_batch([TOKENS.encode(ENTRIES[place].hypotheses[0].text) for place in places])
    (model.losses(batch) / batch.token_lengths).mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= LR * parameter.grad
    return NeuralLm(lm.config, TOKENS, model)


def averaged(*models: NeuralLm) -> NeuralLm:
    mean = copy.deepcopy(models[0].model)
    parameters = [dict(one.model.named_parameters()) for one in models]
    with torch.no_grad():
        for name, parameter in mean.named_parameters():
            parameter.copy_(torch.stack([one[name] for one in parameters]).mean(dim=0))
    return NeuralLm(models[0].config, TOKENS, mean)


def test_a_round_is_a_step_of_every_client_averaged_and_each_goes_on_from_there(lm: NeuralLm) -> None:
    # One round: two groups, the first of x has two lists, of y one; z's only list is in the first.
    found = run(lm, rounds=1)
    x, y, z = stepped(lm, (0, 1)), stepped(lm, (3,)), stepped(lm, (5,))
    everyone = averaged(x, x, y, z)  # x has two utterances
    plain = lm.score_sentences(TEXTS)
    adapted = everyone.score_sentences(TEXTS)
    second_group = [4, 5, 8, 9]  # hypotheses of lists 2 and 4
    expected = plain.copy()
    expected[second_group] = adapted[second_group]
    np.testing.assert_allclose(found.shared, expected, rtol=1e-9)
    own = {(4, 5): stepped(everyone, (0, 1)), (8, 9): stepped(everyone, (3,))}
    for rows, model in own.items():
        np.testing.assert_allclose(
            found.personal[list(rows)], model.score_sentences([TEXTS[row] for row in rows]), rtol=1e-9
        )
    assert np.abs(found.personal - found.shared)[second_group].min() > 1e-6


def test_without_a_round_or_a_step_worth_its_name_nothing_changes(lm: NeuralLm) -> None:
    plain = lm.score_sentences(TEXTS)
    for found in (run(lm, rounds=0), run(lm, rounds=2, lr=0.0)):
        np.testing.assert_allclose(found.shared, plain, rtol=1e-12)
        np.testing.assert_allclose(found.personal, plain, rtol=1e-12)


def test_the_model_it_began_with_is_left_alone_and_the_one_it_ended_with_is_kept(lm: NeuralLm) -> None:
    before = copy.deepcopy(dict(lm.model.named_parameters()))
    found = run(lm, rounds=2)
    assert all(torch.equal(parameter, before[name]) for name, parameter in lm.model.named_parameters())
    assert found.models.keys() == {"shared", "x", "y", "z"}
    assert not torch.equal(found.models["shared"]["bias"], before["bias"])
    assert not torch.equal(found.models["shared"]["bias"], found.models["x"]["bias"])


def test_the_whole_model_travels_both_ways_for_every_client_in_every_round(lm: NeuralLm) -> None:
    found = run(lm, rounds=2)
    whole = size_in_bytes(dict(lm.model.named_parameters()))
    assert found.bytes_up == 2 * 3 * whole
    assert 0 < found.bytes_down - found.bytes_up < 2 * 3 * 200  # the settings of the tasks
    assert found.seconds > 0


def test_a_client_whose_speech_was_not_recognised_gets_the_server_s_model(lm: NeuralLm) -> None:
    silent = [NBest(f"s{n}", (Hypothesis(""), Hypothesis("a")), session="s") for n in range(2)]
    heard = [NBest(f"t{n}", (Hypothesis("ab"),), session="t") for n in range(2)]
    algorithm = fedavg(LocalTraining(LR))
    found = FineTuning([*silent, *heard], {"s": (0, 1), "t": (2, 3)}, lm, algorithm).run(1)
    assert torch.equal(found.models["s"]["bias"], found.models["shared"]["bias"])
    assert not torch.equal(found.models["t"]["bias"], found.models["shared"]["bias"])
