from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_folders import SEQ2SEQ, write_folder

from antiphon.data.batches import Batch
from antiphon.data.huggingface_folder import WAVE_FRAME, HuggingFaceTokensConfig
from antiphon.decoding.beams.attention_beam import AttentionBeam
from antiphon.decoding.search import beam_for
from antiphon.models.huggingface.speech_models import HuggingFaceConfig

FRAMES = [13, 22, 9, 17]


class Case:
    """A tiny network that spells something, its tokens, and speech for it."""

    def __init__(self, folder: Path, name: str) -> None:
        torch.manual_seed(0)
        self.dim = 8 if name == "whisper" else WAVE_FRAME
        self.tokens = HuggingFaceTokensConfig(str(folder), capitals=False).fit([], None)
        self.model = HuggingFaceConfig(str(folder)).build(self.dim, self.tokens.size).double().eval()
        self.start = {name: p.clone() for name, p in self.model.named_parameters()}

    def draw(self, seed: int) -> None:
        """Larger weights, or it would spell one token over and over; some draws spell more than others."""
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.start[name] + 0.5 * torch.randn_like(parameter))

    def batch(self, frames: list[int], tokens: list[list[int]] | None = None) -> Batch:
        generator = torch.Generator().manual_seed(len(frames))
        features = torch.randn(len(frames), max(frames), self.dim, generator=generator, dtype=torch.float64)
        texts = tokens or [[] for _ in frames]
        padded = torch.tensor([text + [0] * (max(map(len, texts)) - len(text)) for text in texts]).long()
        lengths = torch.tensor([len(text) for text in texts])
        return Batch(features, torch.tensor(frames), padded, lengths, tuple(range(len(frames))))


@pytest.fixture(scope="module", params=SEQ2SEQ)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(write_folder(tmp_path_factory.mktemp("folder"), request.param), request.param)


def test_a_beam_of_one_is_greedy(case: Case) -> None:
    batch, num_spelled = case.batch(FRAMES), 0
    for seed in range(5):
        case.draw(seed)
        found = beam_for(case.model, 1).nbest(case.model, case.tokens, batch)
        greedy = case.model.greedy(batch)
        assert [list(hypotheses[0].tokens) for hypotheses in found] == greedy
        num_spelled += sum(map(len, greedy))
    assert num_spelled > 10


def test_a_hypothesis_scores_what_the_model_gives_its_tokens_and_the_best_come_first(case: Case) -> None:
    num_ended = sum(check_scores(case, seed) for seed in range(5))
    assert num_ended > 5


def check_scores(case: Case, seed: int) -> int:
    """How many hypotheses had an end, and were compared."""
    case.draw(seed)
    num_ended = 0
    for row, hypotheses in enumerate(AttentionBeam(5).nbest(case.model, case.tokens, case.batch(FRAMES))):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            if hypothesis.parts["length"] == len(hypothesis.tokens) + 1 and hypothesis.tokens:
                texts = [list(hypothesis.tokens)] * len(FRAMES)
                with torch.no_grad():
                    loss = case.model.losses(case.batch(FRAMES, texts))[row]
                assert hypothesis.parts["acoustic"] == pytest.approx(-float(loss), abs=1e-8)
                num_ended += 1
    return num_ended


def all_scores(model: Any, batch: Batch, num_tokens: int) -> dict[tuple[int, ...], float]:
    """ln p of every string of at most two tokens, the end among them."""
    heard = model.listen(batch).repeated(num_tokens)
    first, cache = model.spell(heard, heard.limits, None)
    second, _ = model.spell(heard, torch.arange(num_tokens), cache)
    found = {(): float(first[0, 0])}
    for one in range(1, num_tokens):
        found[(one,)] = float(first[0, one] + second[one, 0])
        found |= {(one, two): float(first[0, one] + second[one, two]) for two in range(1, num_tokens)}
    return found


def test_a_beam_that_holds_everything_finds_the_best_of_all(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.draw(0)
    monkeypatch.setattr(case.model, "max_tokens", 2)
    batch, num_tokens = case.batch([13]), case.tokens.size
    with torch.inference_mode():
        expected = all_scores(case.model, batch, num_tokens)
        (found,) = AttentionBeam(num_tokens**2).nbest(case.model, case.tokens, batch)
    assert len(found) > num_tokens
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(expected[hypothesis.tokens], abs=1e-8)
    assert found[0].score == pytest.approx(max(expected.values()), abs=1e-8)


def test_a_language_model_is_refused_with_what_to_do(case: Case) -> None:
    with pytest.raises(ValueError, match="antiphon rescore"):
        beam_for(case.model, 4, fusion=object())  # type: ignore[arg-type]
