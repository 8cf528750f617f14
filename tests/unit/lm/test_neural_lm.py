from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphon.data.batches import Batch
from antiphon.data.tokens import CharactersConfig, UnigramConfig, WordsConfig
from antiphon.lm.neural_lm import LmTraining, NeuralLm, TransformerLmConfig, text_batch, train_lm
from antiphon.models.noise import noise_from

TINY = TransformerLmConfig(dim=16, num_layers=2, num_heads=2, feed_forward_dim=24, dropout=0.0)
TEXTS = ["the cat sat", "the dog sat on the cat", "a dog", "on the mat the cat sat", "the end"]
IDS = [[1, 2, 3], [4, 4, 5, 6, 2], [3], [6, 1]]


def build(config=TINY, seed=0, num_tokens=7):
    torch.manual_seed(seed)
    model = config.build(0, num_tokens).double()
    with torch.no_grad():
        model.embedding.weight.mul_(20)
        model.bias.normal_()
    return model


@torch.no_grad()
def written_out(model, ids):
    """ln p of a text, one step after another, each by attention over the tokens so far."""
    config, total = model.config, 0.0
    size = config.dim // config.num_heads
    for step, target in enumerate([*ids, 0]):
        values = torch.stack([model.embedding.weight[i] * config.dim**0.5 for i in [0, *ids[:step]]])
        for layer in model.layers:
            turned = []
            for position, row in enumerate(layer.query_key_value(layer.attention_norm(values))):
                query, key, value = row.view(3, config.num_heads, size)
                angles = position * 10000.0 ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
                pair = []
                for part in (query, key):
                    first, second = part.chunk(2, dim=-1)
                    cosine, sine = angles.cos(), angles.sin()
                    pair.append(
                        torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)
                    )
                turned.append((*pair, value))
            rows = []
            for position, (query, _, _) in enumerate(turned):
                heads = []
                for head in range(config.num_heads):
                    energies = [query[head] @ key[head] / size**0.5 for _, key, _ in turned[: position + 1]]
                    shares = torch.stack(energies).softmax(0)
                    heads.append(
                        sum(share * value[head] for share, (_, _, value) in zip(shares, turned, strict=False))
                    )
                rows.append(layer.output(torch.cat(heads)))
            values = values + torch.stack(rows)
            values = values + layer.feed_forward(values)
        logits = model.embedding.weight @ model.norm(values[-1]) + model.bias
        total += logits.log_softmax(0)[target].item()
    return total


def test_losses_are_the_formulas_written_out():
    model = build().eval()
    losses = model.losses(text_batch(IDS))
    assert np.allclose(losses.tolist(), [-written_out(model, ids) for ids in IDS], atol=1e-9)


def test_a_text_scores_the_same_alone_and_in_a_padded_batch():
    model = build().eval()
    batch = text_batch(IDS)
    padded = replace(batch, tokens=torch.nn.functional.pad(batch.tokens, (0, 4), value=5))
    padded.tokens[2, 1:] = 6  # what stands in the padding changes nothing
    alone = torch.cat([model.losses(text_batch([ids])) for ids in IDS])
    assert (model.losses(padded) - alone).abs().max() < 1e-10


def test_the_probabilities_of_all_texts_add_up_to_one():
    model = build(num_tokens=3).eval().requires_grad_(False)
    short = [[]] + [[a] for a in (1, 2)] + [[a, b] for a in (1, 2) for b in (1, 2)]
    scores = (-model.losses(text_batch(short))).exp()
    logits = model(text_batch([[a, b] for a in (1, 2) for b in (1, 2)]))[0].log_softmax(-1)
    longer = sum(
        math.exp(logits[row, 0, a] + logits[row, 1, b]) * (1 - math.exp(logits[row, 2, 0]))
        for row, (a, b) in enumerate((a, b) for a in (1, 2) for b in (1, 2))
    )
    assert math.isclose(scores.sum().item() + longer, 1.0, rel_tol=1e-9)


def test_it_is_a_model_all_of_whose_state_is_parameters():
    model = build().eval()
    assert not list(model.buffers())
    assert model.fits(0, [1])
    assert not model.fits(5, [])
    best = model(text_batch(IDS))[0].argmax(-1)
    expected = [[t for t in row[: len(ids)].tolist() if t] for row, ids in zip(best, IDS, strict=True)]
    assert model.greedy(text_batch(IDS)) == expected


def test_stacked_clients_get_what_each_would_get_alone():
    config = replace(TINY, dropout=0.3)
    model = build(config).train()
    clients = [dict(build(config, seed).named_parameters()) for seed in (1, 2, 3)]
    batch = text_batch(IDS)
    keys = torch.arange(12, dtype=torch.int32).view(3, 4)

    def alone(parameters, keys):
        with noise_from(keys):
            return functional_call(model, parameters, (batch,))[0]

    stacked = {name: torch.stack([client[name] for client in clients]) for name in clients[0]}
    with sdpa_kernel(SDPBackend.MATH):
        together = vmap(alone)(stacked, keys)
    apart = torch.stack([alone(client, own) for client, own in zip(clients, keys, strict=True)])
    assert (together - apart).abs().max() < 1e-10
    assert (together[0] - build(config, 1).eval()(batch)[0]).abs().max() > 1e-3  # dropout was at work


def test_gradients_agree_with_finite_differences():
    model = build().eval()
    names, values = zip(*model.named_parameters(), strict=True)
    batch = text_batch(IDS[:2])

    def logits(*parameters):
        return functional_call(model, dict(zip(names, parameters, strict=True)), (batch,))[0]

    assert torch.autograd.gradcheck(logits, values, fast_mode=True)


def trained(tokens, seed=0, steps=100):
    training = LmTraining(steps=steps, batch_tokens=64, lr=1e-2, seed=seed)
    return train_lm(TEXTS, tokens, replace(TINY, dropout=0.1), training)


@pytest.mark.parametrize("config", [WordsConfig(), UnigramConfig(18), CharactersConfig()])
def test_training_makes_the_texts_likely(config):
    tokens = config.fit(TEXTS, None)
    before, after = trained(tokens, steps=1), trained(tokens)
    assert after.perplexity(TEXTS).value < 6.0 < before.perplexity(TEXTS).value


def test_the_same_seed_trains_the_same_model_and_leaves_the_callers_generator_alone():
    tokens = WordsConfig().fit(TEXTS, None)
    torch.manual_seed(5)
    models = [trained(tokens, seed, steps=5) for seed in (1, 1, 2)]
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))
    scores = [model.score_sentences(TEXTS) for model in models]
    assert np.array_equal(scores[0], scores[1])
    assert not np.allclose(scores[0], scores[2])


def test_perplexity_is_per_word_with_ends_whatever_the_tokens_are():
    for config in (WordsConfig(size=5), CharactersConfig()):
        lm = trained(config.fit(TEXTS, None), steps=2)
        found = lm.perplexity(TEXTS)
        assert (found.num_words, found.num_sentences) == (19, 5)
        assert math.isclose(found.value, math.exp(-lm.score_sentences(TEXTS).sum() / 24), rel_tol=1e-9)
    # Of size 5, three words are known: 6 times the, 3 times cat and sat.
    assert trained(WordsConfig(size=5).fit(TEXTS, None), steps=1).perplexity(TEXTS).num_unknown == 7


def test_many_sentences_score_as_each_alone(monkeypatch):
    lm = trained(CharactersConfig().fit(TEXTS, None), steps=2)
    monkeypatch.setattr("antiphon.lm.neural_lm.MAX_LOGITS", 1000)
    together = lm.score_sentences([*TEXTS, ""])
    alone = [lm.score_sentences([text])[0] for text in [*TEXTS, ""]]
    assert np.allclose(together, alone, atol=1e-4)
    assert together[-1] < 0


@pytest.mark.parametrize("config", [WordsConfig(), UnigramConfig(18), CharactersConfig()])
def test_a_model_comes_back_as_it_was_saved(tmp_path, config):
    lm = trained(config.fit(TEXTS, None), steps=2)
    lm.save(tmp_path / "lm", {"why": "test"})
    back = NeuralLm.load(tmp_path / "lm")
    assert back.config == lm.config
    assert np.array_equal(back.score_sentences(TEXTS), lm.score_sentences(TEXTS))
    assert json.loads((tmp_path / "lm" / "lm.json").read_text())["notes"] == {"why": "test"}


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no language model"):
        NeuralLm.load(tmp_path)
    lm = trained(WordsConfig().fit(TEXTS, None), steps=1)
    lm.save(tmp_path)
    WordsConfig(size=4).fit(TEXTS, None).save(tmp_path)
    with pytest.raises(ValueError, match=r"words\.json is damaged: its checksum does not match\. .*train"):
        NeuralLm.load(tmp_path)
    body = json.loads((tmp_path / "lm.json").read_text())
    (tmp_path / "lm.json").write_text(json.dumps({"format": body["format"], "config": body["config"]}))
    with pytest.raises(ValueError, match="does not fit"):
        NeuralLm.load(tmp_path)
    (tmp_path / "lm.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="format 'other'"):
        NeuralLm.load(tmp_path)


@pytest.mark.parametrize("sizes", [{"dim": 10, "num_heads": 4}, {"num_layers": 0}])
def test_sizes_that_make_no_model_are_refused(sizes):
    with pytest.raises(ValueError, match=r"sizes of a model|transformer dim 10 must be a multiple"):
        TransformerLmConfig(**sizes)


def test_no_text_is_refused():
    with pytest.raises(ValueError, match="no text"):
        train_lm([""], CharactersConfig().fit(["a"], None))


def test_the_learning_rate_climbs_and_falls():
    training = LmTraining(steps=100, warmup=0.1, lr=1.0)
    rates = [training.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(rates[9]) == pytest.approx(1.0, abs=0.03)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] < 0.001


def test_a_batch_of_texts_has_no_speech():
    batch = text_batch(IDS)
    assert isinstance(batch, Batch)
    assert batch.features.numel() == 0
    assert batch.token_lengths.tolist() == [3, 5, 1, 2]
