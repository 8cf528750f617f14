"""Beams beside all paths and all texts there are, one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from antiphon.data.batches import Batch
from antiphon.data.tokens import Characters
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.hypothesis import ACOUSTIC, LM, WORDS
from antiphon.decoding.transducer_beam import ExactTransducerBeam, TransducerBeam
from antiphon.models.conformer import ConformerConfig
from antiphon.models.kneser_ney import estimate
from antiphon.models.transducer import Transducer, TransducerConfig

TOKENS = Characters(" ab")  # blank, unknown, space, a, b
FRAMES = [6, 8, 3]
CONFIG = TransducerConfig(
    ConformerConfig(dim=8, num_layers=1, num_heads=2, kernel_size=3, stack=2), prediction_dim=6, joint_dim=8
)
Spelled = tuple[int, ...]


def build(blank: float = 0.0, seed: int = 0) -> Transducer:
    torch.manual_seed(seed)
    model = CONFIG.build(5, TOKENS.size).double().eval()
    with torch.no_grad():  # a model with opinions, of what was said before too
        model.from_encoder.weight.mul_(4)
        model.from_prediction.weight.mul_(3)
        model.output.weight.mul_(4)
        model.output.bias[0] += blank
        model.output.bias[1] -= 3.0  # the unknown token
    return model


def batch_of(frames: list[int], tokens: list[Spelled] | None = None, padding: int = 0) -> Batch:
    tokens = tokens or [()] * len(frames)
    features = torch.zeros(len(frames), max(frames) + padding, 5, dtype=torch.float64)
    ids = torch.zeros(len(frames), max(map(len, tokens)), dtype=torch.int64)
    for row, (length, spelled) in enumerate(zip(frames, tokens, strict=True)):
        generator = torch.Generator().manual_seed(length)
        features[row, :length] = torch.randn(length, 5, generator=generator, dtype=torch.float64)
        ids[row, : len(spelled)] = torch.tensor(spelled, dtype=torch.int64)
    sizes = torch.tensor([len(spelled) for spelled in tokens])
    return Batch(features, torch.tensor(frames), ids, sizes, tuple(range(len(frames))))


@torch.no_grad()
def one_symbol_a_frame(model: Transducer, num_frames: int) -> dict[Spelled, float]:
    """ln of the sum over all paths of one symbol a frame, for everything they spell."""
    frames, lengths = model.listen(batch_of([num_frames]))
    found: dict[Spelled, float] = {}
    for path in product(range(TOKENS.size), repeat=int(lengths)):
        context, total = model.start(1), 0.0
        for frame, symbol in zip(frames[0], path, strict=True):
            total += float(model.classify(frame, model.predict(context)[0]).log_softmax(-1)[symbol])
            context = model.advance(context, torch.tensor([symbol])) if symbol else context
        spelled = tuple(symbol for symbol in path if symbol)
        found[spelled] = float(np.logaddexp(found.get(spelled, -np.inf), total))
    return found


@torch.no_grad()
def every_text(model: Transducer, num_frames: int, longest: int) -> dict[Spelled, float]:
    """ln p(tokens | speech) of all texts up to a length, by the loss."""
    texts = [text for length in range(longest + 1) for text in product(range(1, TOKENS.size), repeat=length)]
    losses = model.losses(batch_of([num_frames] * len(texts), texts))
    return dict(zip(texts, (-losses).tolist(), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_a_width_of_one_is_greedy_search_at_one_symbol_a_frame(seed: int) -> None:
    model = build(seed=seed)
    model.config = replace(CONFIG, symbols_per_frame=1)
    frames = [30, 41, 12, 1]
    lists = TransducerBeam(width=1).nbest(model, TOKENS, batch_of(frames))
    greedy = model.greedy(batch_of(frames))
    assert [list(best.tokens) for (best,) in lists] == greedy
    assert any(greedy)


def test_a_beam_wide_enough_sums_all_paths_of_one_symbol_a_frame() -> None:
    model = build()
    for num_frames, found in zip(
        FRAMES, TransducerBeam(width=1000).nbest(model, TOKENS, batch_of(FRAMES)), strict=True
    ):
        expected = one_symbol_a_frame(model, num_frames)
        merged: dict[str, list[float]] = {}  # runs of spaces read the same
        for spelled, acoustic in expected.items():
            merged.setdefault(" ".join(TOKENS.decode(spelled).split()), []).append(acoustic)
        assert len(found) == len(merged)
        for hypothesis in found:
            assert hypothesis.parts[ACOUSTIC] == pytest.approx(np.logaddexp.reduce(merged[hypothesis.text]))
            assert expected[hypothesis.tokens] == pytest.approx(max(merged[hypothesis.text]))
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)


def test_prefixes_in_a_narrow_beam_are_never_worth_more_than_all_their_paths() -> None:
    model = build()
    (found,) = TransducerBeam(width=5).nbest(model, Letters(), batch_of([8]))
    expected = one_symbol_a_frame(model, 8)
    assert 1 < len(found) <= 5
    for hypothesis in found:
        assert hypothesis.parts[ACOUSTIC] <= expected[hypothesis.tokens] + 1e-12
    assert found[0].tokens == max(expected, key=lambda spelled: expected[spelled])


class Letters:
    """Tokens each of which reads as a letter of its own: no two texts are the same."""

    size = TOKENS.size

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: object) -> str:
        return "".join("?wxyz"[id] for id in ids)  # type: ignore[attr-defined]

    def save(self, folder: object) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("width", [1, 4, 20])
def test_the_exact_search_knows_the_full_likelihood_whatever_its_width(width: int) -> None:
    model = build()
    lists = ExactTransducerBeam(width).nbest(model, Letters(), batch_of(FRAMES))
    for num_frames, found in zip(FRAMES, lists, strict=True):
        spelled = [hypothesis.tokens for hypothesis in found]
        assert 1 <= len(spelled) <= width
        losses = model.losses(batch_of([num_frames] * len(spelled), spelled))
        assert [h.parts[ACOUSTIC] for h in found] == pytest.approx((-losses).tolist(), abs=1e-10)


def test_the_exact_search_finds_the_best_of_all_texts_in_their_order() -> None:
    model = build(blank=4.0)
    found = ExactTransducerBeam(width=200).nbest(model, Letters(), batch_of(FRAMES))
    for num_frames, own in zip(FRAMES, found, strict=True):
        expected = every_text(model, num_frames, longest=6)
        rest = 1 - np.exp(list(expected.values())).sum()  # all longer texts together
        ranked = sorted(expected, key=lambda spelled: -expected[spelled])
        sure = [spelled for spelled in ranked[:200] if np.exp(expected[spelled]) > rest]
        assert len(sure) >= 5
        assert [hypothesis.tokens for hypothesis in own[: len(sure)]] == sure


def test_hypotheses_are_the_same_alone_and_in_a_padded_batch() -> None:
    model = build()
    for beam in (TransducerBeam(4), ExactTransducerBeam(4)):
        together = beam.nbest(model, TOKENS, batch_of(FRAMES, padding=5))
        for num_frames, own in zip(FRAMES, together, strict=True):
            (alone,) = beam.nbest(model, TOKENS, batch_of([num_frames]))
            assert [h.tokens for h in own] == [h.tokens for h in alone]
            assert [h.score for h in own] == pytest.approx([h.score for h in alone], abs=1e-10)


@pytest.mark.parametrize("kind", [TransducerBeam, ExactTransducerBeam])
def test_fusion_keeps_parts_apart_and_a_wide_beam_agrees_with_rescoring(
    kind: type[TransducerBeam | ExactTransducerBeam],
) -> None:
    model = build(blank=2.0)
    fusion = Fusion(estimate(["a b", "a a", "ab a", "a"], order=2), weight=2.0)
    (plain,) = kind(width=1000).nbest(model, TOKENS, batch_of([4]))
    (fused,) = kind(width=1000, fusion=fusion).nbest(model, TOKENS, batch_of([4]))
    for hypothesis in fused:
        (lm,) = fusion.model.score_sentences([hypothesis.text])
        assert hypothesis.parts[LM] == pytest.approx(lm)
        assert hypothesis.parts[WORDS] == len(hypothesis.text.split())
        assert hypothesis.score == pytest.approx(hypothesis.total({ACOUSTIC: 1.0, LM: 2.0}))
    lms = fusion.model.score_sentences([hypothesis.text for hypothesis in plain])
    rescored = {h.text: h.parts[ACOUSTIC] + 2.0 * lm for h, lm in zip(plain, lms, strict=True)}
    ranked = sorted(rescored, key=lambda text: -rescored[text])
    assert [h.text for h in fused[:5]] == ranked[:5]
    assert [h.score for h in fused[:5]] == pytest.approx(
        [rescored[text] for text in ranked[:5]],
        abs=1e-3,  # runs of spaces that were not worth following
    )
    assert ranked[:5] != [h.text for h in plain[:5]]


def test_a_beam_without_width_is_refused() -> None:
    for kind in (TransducerBeam, ExactTransducerBeam):
        with pytest.raises(ValueError, match="at least 1"):
            kind(width=0)
