"""Beams beside all paths and all texts there are, one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from exact_transducer_beam import ExactTransducerBeam

from antiphon.data.batches import Batch
from antiphon.data.tokens import Characters
from antiphon.decoding.beams.transducer_beam import TransducerBeam
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.nbest import ACOUSTIC, LM, WORDS
from antiphon.lm.kneser_ney import estimate
from antiphon.models.conformer import ConformerConfig
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
def every_path(model: Transducer, num_frames: int, symbols_per_frame: int = 1) -> dict[Spelled, float]:
    """ln of the sum over all alignments with so many tokens a frame at most, for everything they spell.

    Fewer tokens than that need a blank to move on.
    """
    frames, lengths = model.listen(batch_of([num_frames]))
    in_a_frame = [
        tokens + (0,) * (size < symbols_per_frame)
        for size in range(symbols_per_frame + 1)
        for tokens in product(range(1, TOKENS.size), repeat=size)
    ]
    found = {(): 0.0}
    for frame in frames[0, : int(lengths)]:
        contexts = list(product(range(TOKENS.size), repeat=2))
        log_probs = model.classify(frame, model.predict(torch.tensor(contexts))).log_softmax(-1)
        known = dict(zip(contexts, log_probs.tolist(), strict=True))
        after: dict[Spelled, float] = {}
        for (spelled, total), path in product(found.items(), in_a_frame):
            for symbol in path:
                total += known[(0, 0, *spelled)[-2:]][symbol]
                spelled += (symbol,) if symbol else ()
            after[spelled] = float(np.logaddexp(after.get(spelled, -np.inf), total))
        found = after
    return found


@torch.no_grad()
def every_text(model: Transducer, num_frames: int, longest: int) -> dict[Spelled, float]:
    """ln p(tokens | speech) of all texts up to a length, by the loss."""
    texts = [text for length in range(longest + 1) for text in product(range(1, TOKENS.size), repeat=length)]
    losses = model.losses(batch_of([num_frames] * len(texts), texts))
    return dict(zip(texts, (-losses).tolist(), strict=True))


@pytest.mark.parametrize("symbols_per_frame", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_width_of_one_is_greedy_search_at_as_many_symbols_a_frame(
    seed: int, symbols_per_frame: int
) -> None:
    model = build(seed=seed)
    model.config = replace(CONFIG, symbols_per_frame=symbols_per_frame)
    frames = [30, 41, 12, 1]
    lists = TransducerBeam(1, symbols_per_frame).nbest(model, TOKENS, batch_of(frames))
    greedy = model.greedy(batch_of(frames))
    assert [list(best.tokens) for (best,) in lists] == greedy
    model.config = replace(CONFIG, symbols_per_frame=symbols_per_frame + 1)
    assert model.greedy(batch_of(frames)) != greedy  # the limit is felt


def test_a_beam_wide_enough_sums_all_paths_of_one_symbol_a_frame() -> None:
    model = build()
    for num_frames, found in zip(
        FRAMES, TransducerBeam(width=1000).nbest(model, TOKENS, batch_of(FRAMES)), strict=True
    ):
        expected = every_path(model, num_frames)
        merged: dict[str, list[float]] = {}  # runs of spaces read the same
        for spelled, acoustic in expected.items():
            merged.setdefault(" ".join(TOKENS.decode(spelled).split()), []).append(acoustic)
        assert len(found) == len(merged)
        for hypothesis in found:
            assert hypothesis.parts[ACOUSTIC] == pytest.approx(np.logaddexp.reduce(merged[hypothesis.text]))
            assert expected[hypothesis.tokens] == pytest.approx(max(merged[hypothesis.text]))
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(("frames", "symbols_per_frame"), [([4, 6], 2), ([4, 2], 3)])
def test_a_beam_wide_enough_sums_all_alignments_of_several_symbols_a_frame(
    frames: list[int], symbols_per_frame: int
) -> None:
    model = build()
    beam = TransducerBeam(10_000, symbols_per_frame)
    for num_frames, found in zip(frames, beam.nbest(model, Letters(), batch_of(frames)), strict=True):
        expected = every_path(model, num_frames, symbols_per_frame)
        assert {hypothesis.tokens: hypothesis.parts[ACOUSTIC] for hypothesis in found} == pytest.approx(
            expected
        )


def test_with_more_symbols_a_frame_than_tokens_the_likelihood_is_full() -> None:
    model = build(blank=4.0)
    (found,) = TransducerBeam(3000, symbols_per_frame=5).nbest(model, Letters(), batch_of([4]))
    expected = every_text(model, 4, longest=4)
    acoustic = {hypothesis.tokens: hypothesis.parts[ACOUSTIC] for hypothesis in found}
    likeliest = sorted(expected, key=lambda spelled: -expected[spelled])[:50]
    assert max(map(len, likeliest)) >= 3
    assert [acoustic[spelled] for spelled in likeliest] == pytest.approx(
        [expected[spelled] for spelled in likeliest], rel=1e-6
    )


def test_one_prefix_open_and_waiting_is_summed_by_hand() -> None:
    """Two frames, one kind of token, at most two a frame; each is a blank or not, half and half."""
    model = build()
    with torch.no_grad():
        for parameter in model.output.parameters():
            parameter.zero_()
        model.output.bias[[1, 2, 4]] = -torch.inf
    (found,) = TransducerBeam(20, symbols_per_frame=2).nbest(model, Letters(), batch_of([4]))
    probabilities = {h.tokens: np.exp(h.parts[ACOUSTIC]) for h in found}
    # In a frame: nothing 1/2, one 1/4, two (and no blank) 1/4.
    assert probabilities == pytest.approx(
        {(): 1 / 4, (3,): 2 / 8, (3, 3): 2 / 8 + 1 / 16, (3,) * 3: 2 / 16, (3,) * 4: 1 / 16}
    )


def test_prefixes_in_a_narrow_beam_are_never_worth_more_than_all_their_paths() -> None:
    model = build()
    (found,) = TransducerBeam(width=5).nbest(model, Letters(), batch_of([8]))
    expected = every_path(model, 8)
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
    for beam in (TransducerBeam(4), TransducerBeam(4, symbols_per_frame=3), ExactTransducerBeam(4)):
        together = beam.nbest(model, TOKENS, batch_of(FRAMES, padding=5))
        for num_frames, own in zip(FRAMES, together, strict=True):
            (alone,) = beam.nbest(model, TOKENS, batch_of([num_frames]))
            assert [h.tokens for h in own] == [h.tokens for h in alone]
            assert [h.score for h in own] == pytest.approx([h.score for h in alone], abs=1e-10)


@pytest.mark.parametrize(
    "beam",
    [TransducerBeam(1000), TransducerBeam(1000, symbols_per_frame=3), ExactTransducerBeam(1000)],
    ids=["one symbol", "three symbols", "exact"],
)
def test_fusion_keeps_parts_apart_and_a_wide_beam_agrees_with_rescoring(
    beam: TransducerBeam | ExactTransducerBeam,
) -> None:
    model = build(blank=2.0)
    fusion = Fusion(estimate(["a b", "a a", "ab a", "a"], order=2), weight=2.0)
    (plain,) = beam.nbest(model, TOKENS, batch_of([4]))
    (fused,) = replace(beam, fusion=fusion).nbest(model, TOKENS, batch_of([4]))
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
    with pytest.raises(ValueError, match="at least 1 symbol a frame"):
        TransducerBeam(symbols_per_frame=0)
