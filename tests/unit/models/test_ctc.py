from __future__ import annotations

from itertools import groupby, product

import pytest
import torch

from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig, collapse, ctc_losses


def spell(path):
    return [token for token, _ in groupby(path) if token != 0]


def brute_force(log_probs, tokens):
    """Minus the log of the summed probability of every path that spells the tokens."""
    num_frames, num_tokens = log_probs.shape
    paths = [p for p in product(range(num_tokens), repeat=num_frames) if spell(p) == tokens]
    if not paths:
        return torch.tensor(torch.inf, dtype=log_probs.dtype)
    scores = [sum(log_probs[t, token] for t, token in enumerate(path)) for path in paths]
    return -torch.logsumexp(torch.stack(scores), dim=0)


def tiny_ctc(num_tokens=3):
    torch.manual_seed(0)
    return CtcConfig(ConformerConfig(dim=4, num_layers=1, num_heads=1, kernel_size=3)).build(5, num_tokens)


@pytest.mark.parametrize("tokens", [[1], [2, 1], [1, 1], [2, 2, 1]])
def test_the_loss_sums_over_every_alignment(tokens, batch_of):
    model = tiny_ctc().double().eval()
    batch = batch_of([5, 4], [tokens, tokens])
    log_probs, _ = model(batch)
    expected = [brute_force(log_probs[0, :5], tokens), brute_force(log_probs[1, :4], tokens)]
    assert torch.allclose(model.losses(batch), torch.stack(expected), atol=1e-12)


def test_exactly_the_tokens_that_fit_have_a_finite_loss():
    model = tiny_ctc()
    for num_frames in range(1, 6):
        log_probs = torch.randn(1, num_frames, 3).log_softmax(-1)
        for length in range(1, 5):
            for tokens in product((1, 2), repeat=length):
                loss = ctc_losses(
                    log_probs, torch.tensor([num_frames]), torch.tensor([tokens]), torch.tensor([length])
                )
                assert bool(loss.isfinite()) == model.fits(num_frames, tokens)


def test_fits_counts_the_encoders_frames_not_the_features():
    model = CtcConfig(BlstmConfig(dim=2, num_layers=1, stack=3)).build(5, 7)
    assert model.fits(4, [1, 2])
    assert not model.fits(3, [1, 2])
    assert not model.fits(4, [1, 1])
    assert model.fits(7, [1, 1])


def test_collapsing_a_path_gives_what_it_spells():
    paths = torch.randint(0, 3, (50, 9), generator=torch.Generator().manual_seed(0))
    lengths = torch.arange(50) % 9 + 1
    expected = [spell(path[:length]) for path, length in zip(paths.tolist(), lengths.tolist(), strict=True)]
    assert collapse(paths, lengths) == expected
