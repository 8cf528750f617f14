from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from antiphon.models.blstm import BlstmConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.las import MEDIUM, PUBLISHED, SMALL, Las, LasConfig

CONFIG = LasConfig(
    BlstmConfig(dim=4, num_layers=2, stack=2),
    decoder_dim=6,
    attention_dim=5,
    location_channels=2,
    location_width=5,
    dropout=0.0,
)


SILENT = replace(CONFIG, encoder=replace(CONFIG.encoder, dropout=0.0))  # no dropout: train() may be compared
JOINT = replace(SILENT, ctc_weight=0.3)


def build(config: LasConfig = CONFIG) -> Las:
    torch.manual_seed(0)
    model = config.build(5, 7).double().eval()
    with torch.no_grad():  # attention that cares where it was, so that the test would notice
        model.attention.location.weight.mul_(20)
        model.attention.location_output.weight.mul_(20)
    return model


def naive_steps(model: Las, frames: torch.Tensor):
    """One utterance's frames [T, dim]; send in a token, get the logits of the next. As in the papers."""
    num_frames = len(frames)
    attention, half = model.attention, CONFIG.location_width // 2
    weights = [1 / num_frames] * num_frames
    context = torch.zeros(model.encoder.dim, dtype=torch.float64)
    states = [(torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)) for _ in model.cells]
    token = yield
    while True:
        values = torch.cat([model.embedding.weight[token], context])
        for i, cell in enumerate(model.cells):
            gates = cell.weight_ih @ values + cell.bias_ih + cell.weight_hh @ states[i][0] + cell.bias_hh
            enter, forget, fresh, leave = gates.chunk(4)
            carry = forget.sigmoid() * states[i][1] + enter.sigmoid() * fresh.tanh()
            values = leave.sigmoid() * carry.tanh()
            states[i] = (values, carry)
        energies = []
        for t in range(num_frames):
            around = [weights[s] if 0 <= s < num_frames else 0.0 for s in range(t - half, t + half + 1)]
            heard = attention.location.weight @ torch.stack([torch.as_tensor(w).double() for w in around])
            summed = (
                attention.query.weight @ values
                + attention.key.weight @ frames[t]
                + attention.key.bias
                + attention.location_output.weight @ heard
            )
            energies.append(attention.energy.weight[0] @ summed.tanh())
        weights = list(torch.stack(energies).softmax(0))
        context = sum(weight * frame for weight, frame in zip(weights, frames, strict=True))
        hidden = (model.combine.weight @ torch.cat([values, context]) + model.combine.bias).tanh()
        token = yield model.output.weight @ hidden + model.output.bias


def naive_logits(model, batch, index, tokens):
    frames, lengths = model.encoder(
        batch.features[index : index + 1], batch.feature_lengths[index : index + 1]
    )
    steps = naive_steps(model, frames[0, : lengths[0]])
    next(steps)
    return [steps.send(token) for token in tokens]


@torch.no_grad()
def test_losses_agree_with_one_step_after_another_written_out(batch_of):
    model, tokens = build(), [[1, 2, 3], [4, 4], [6]]
    batch = batch_of([9, 14, 5], tokens)
    expected = []
    for i, spelled in enumerate(tokens):
        logits = naive_logits(model, batch, i, [0, *spelled])
        chosen = [step.log_softmax(0)[token] for step, token in zip(logits, [*spelled, 0], strict=True)]
        expected.append(-sum(chosen))
    assert (model.losses(batch) - torch.stack(expected)).abs().max() < 1e-10


@torch.no_grad()
def test_greedy_spells_the_best_next_token_until_the_end_or_the_limit(batch_of):
    model = build()
    model.output.bias[0] += 0.05
    batch = batch_of([9, 14, 5, 21], [[1]] * 4)
    expected = []
    for i, num_frames in enumerate([9, 14, 5, 21]):
        frames, lengths = model.encoder(batch.features[i : i + 1], batch.feature_lengths[i : i + 1])
        steps = naive_steps(model, frames[0, : lengths[0]])
        next(steps)
        token, spelled = 0, []
        while len(spelled) < (num_frames + 1) // 2:
            token = int(steps.send(token).argmax())
            if token == 0:
                break
            spelled.append(token)
        expected.append(spelled)
    assert model.greedy(batch) == expected


@torch.no_grad()
def test_greedy_stops_at_one_token_a_frame(batch_of):
    model = build()
    model.output.bias[0] = -1e9  # it never ends by itself
    lengths = [len(tokens) for tokens in model.greedy(batch_of([9, 2, 5], [[1]] * 3))]
    assert lengths == [5, 1, 3]


@torch.no_grad()
def test_greedy_of_a_model_that_ends_at_once_is_empty(batch_of):
    model = build()
    model.output.bias[0] = 1e9
    assert model.greedy(batch_of([9, 4], [[1]] * 2)) == [[], []]


@torch.no_grad()
def test_label_smoothing_acts_while_training_only(batch_of):
    batch = batch_of([9, 14], [[1, 2, 3], [4, 4]])
    plain, smooth = build(), build(replace(SILENT, label_smoothing=0.2))
    assert torch.equal(smooth.eval().losses(batch), plain.losses(batch))
    logits = torch.stack(naive_logits(plain, batch, 0, [0, 1, 2, 3]))
    expected = F.cross_entropy(logits, torch.tensor([1, 2, 3, 0]), label_smoothing=0.2, reduction="sum")
    assert torch.allclose(smooth.train().losses(batch)[0], expected)


def parts_of(joint: Las) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The attention model and the CTC model that a joint model is made of, each on its own."""
    attention = build(SILENT).train()
    attention.load_state_dict({k: v for k, v in joint.state_dict().items() if not k.startswith("ctc.")})
    ctc = CtcConfig(JOINT.encoder).build(5, 7).double().train()
    encoder = {k: v for k, v in joint.state_dict().items() if k.startswith("encoder.")}
    ctc.load_state_dict(
        {**encoder, "output.weight": joint.ctc.weight.detach(), "output.bias": joint.ctc.bias.detach()}
    )
    return attention, ctc


def test_the_joint_loss_and_its_gradient_are_the_weighted_sums_of_the_two(batch_of):
    joint, batch = build(JOINT).train(), batch_of([9, 14, 6], [[1, 2, 3], [4, 4], [6]], padding=2)
    attention, ctc = parts_of(joint)
    assert torch.allclose(joint.losses(batch), 0.3 * ctc.losses(batch) + 0.7 * attention.losses(batch))
    for model in (joint, attention, ctc):
        model.losses(batch).sum().backward()
    for name, parameter in attention.named_parameters():
        expected = 0.7 * parameter.grad
        if name.startswith("encoder."):
            expected = expected + 0.3 * ctc.get_parameter(name).grad
        assert torch.allclose(joint.get_parameter(name).grad, expected), name
    assert torch.allclose(joint.ctc.weight.grad, 0.3 * ctc.output.weight.grad)


@torch.no_grad()
def test_a_joint_model_that_does_not_train_scores_as_its_decoder_alone(batch_of):
    joint, batch = build(JOINT), batch_of([9, 14], [[1, 2, 3], [4, 4]])
    attention, _ = parts_of(joint)
    assert torch.equal(joint.eval().losses(batch), attention.eval().losses(batch))
    assert joint.greedy(batch) == attention.greedy(batch)


def test_without_ctc_there_is_no_layer_for_it_and_the_others_are_drawn_the_same():
    plain, joint = dict(build(SILENT).named_parameters()), dict(build(JOINT).named_parameters())
    assert joint.keys() - plain.keys() == {"ctc.weight", "ctc.bias"}
    assert list(joint)[: len(plain)] == list(plain)
    assert all(torch.equal(parameter, joint[name]) for name, parameter in plain.items())


def test_with_ctc_in_the_loss_an_utterance_must_have_an_alignment(batch_of):
    plain, joint = build(SILENT).train(), build(JOINT).train()
    for num_frames, tokens in ((6, [1, 2, 3]), (5, [4, 4]), (6, [4, 4, 4]), (3, [1, 2, 3]), (4, [2, 2])):
        assert plain.fits(num_frames, tokens)
        loss = joint.losses(batch_of([num_frames], [tokens]))
        assert joint.fits(num_frames, tokens) == bool(loss.isfinite())
    assert joint.fits(6, [1, 2, 3])
    assert not joint.fits(6, [4, 4, 4])


@torch.no_grad()
def test_alignments_are_the_attention_of_each_token_over_its_own_frames(batch_of):
    model, frames, tokens = build(), [9, 14, 5], [[1, 2, 3], [4, 4], [6]]
    found = model.alignments(batch_of(frames, tokens, padding=4))
    assert [tuple(matrix.shape) for matrix in found] == [(3, 5), (2, 7), (1, 3)]
    for matrix, length, spelled in zip(found, frames, tokens, strict=True):
        assert torch.allclose(matrix.sum(dim=1), torch.ones(len(spelled), dtype=torch.float64))
        batch = batch_of([length], [spelled])
        memory = model.listen(batch.features, batch.feature_lengths)
        decoder = model.start(memory)
        for row, token in zip(matrix, [0, *spelled], strict=False):
            decoder = model.step(model.embedding(torch.tensor([token])), decoder, memory)
            assert torch.allclose(row, decoder.weights[0])


def test_presets_have_the_sizes_they_say():
    with torch.device("meta"):
        small, medium, published = SMALL.build(80, 30), MEDIUM.build(80, 500), PUBLISHED.build(80, 1000)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (small, medium, published)]
    assert [round(size / 1e6, 1) for size in sizes] == [1.7, 11.0, 87.5]
    assert len(published.encoder.layers) == 6
    assert published.encoder.num_output_frames(300) == 100
    assert len(published.cells) == 2


def test_sizes_that_cannot_be_built_are_refused():
    with pytest.raises(ValueError, match="must be odd"):
        LasConfig(location_width=4)
    with pytest.raises(ValueError, match="at least 1"):
        LasConfig(decoder_layers=0)
    for weight in (-0.1, 1.0):
        with pytest.raises(ValueError, match="take the ctc model"):
            LasConfig(ctc_weight=weight)
