"""Labels made on a client: what they are, and that nothing but the teacher decides them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from runtimes import HEARD, talkative
from world import FRONTEND, World

from antiphon.clients.client import Client, ClientRuntime, PseudoLabels, WeightedTranscript
from antiphon.clients.labeller import Labeller, open_teacher
from antiphon.decoding.nbest import ACOUSTIC, LM, Hypothesis
from antiphon.lm.arpa import save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.recognizer import Blueprint, Recognizer
from antiphon.tasks.pseudo_labels import (
    LowEntropy,
    Ngram,
    SecondPass,
    SentenceProbability,
    TeacherInstruction,
    TokenProbability,
    TopPosterior,
)

# --- What labels are ------------------------------------------------------------------------------


def hypotheses(*pairs: tuple[str, float]) -> list[Hypothesis]:
    return [
        Hypothesis(text, tuple(range(2, 2 + len(text))), score, {"acoustic": score}) for text, score in pairs
    ]


def test_the_best_hypotheses_are_weighted_by_their_posteriors(world: World) -> None:
    labeller = Labeller(talkative(world))
    found = hypotheses(("ab", -1.0), ("a", -2.0), ("b", -3.0), ("c", -4.0))
    transcripts, confidence = labeller.transcripts(
        found, 60, replace(HEARD, num_hypotheses=2, temperature=2.0)
    )
    powers = [math.exp(-score / 2) for score in (1, 2, 3, 4)]
    assert confidence == pytest.approx(powers[0] / sum(powers))
    encode = world.tokens.encode
    assert [transcript.tokens for transcript in transcripts] == [tuple(encode("ab")), tuple(encode("a"))]
    weights = [powers[0] / (powers[0] + powers[1]), powers[1] / (powers[0] + powers[1])]
    assert [transcript.weight for transcript in transcripts] == pytest.approx(weights)


def test_one_hypothesis_is_a_hard_label(world: World) -> None:
    transcripts, _ = Labeller(talkative(world)).transcripts(
        hypotheses(("ab", -1.0), ("a", -1.0)), 60, replace(HEARD, num_hypotheses=1)
    )
    assert transcripts == (WeightedTranscript(tuple(world.tokens.encode("ab")), 1.0),)


@pytest.mark.parametrize("confidence", [TopPosterior(0.6), LowEntropy(0.2), TokenProbability(0.7)])
def test_an_utterance_below_the_least_confidence_is_left_out(
    world: World, confidence: TopPosterior | LowEntropy | TokenProbability
) -> None:
    labeller, settings = Labeller(talkative(world)), replace(HEARD, confidence=confidence)
    unsure, _ = labeller.transcripts(hypotheses(("ab", -1.0), ("b", -1.0)), 60, settings)
    sure, _ = labeller.transcripts(hypotheses(("ab", -0.5), ("b", -4.0)), 60, settings)
    assert (len(unsure), len(sure)) == (0, 2)


def test_what_the_language_model_finds_unlikely_may_be_left_out(world: World) -> None:
    settings = replace(HEARD, confidence=SentenceProbability(0.2))
    said, unsaid = (
        [Hypothesis("ab", tuple(world.tokens.encode("ab")), -1.0, {ACOUSTIC: -1.0, LM: log_lm})]
        for log_lm in (-2.0, -3.0)
    )
    labeller = Labeller(talkative(world))  # exp((−1 − 2) / 2) = 0.22, exp((−1 − 3) / 2) = 0.14
    assert [len(labeller.transcripts(own, 60, settings)[0]) for own in (said, unsaid)] == [1, 0]


def test_what_cannot_be_trained_on_is_dropped_and_where_it_is_the_best_nothing_is_known(world: World) -> None:
    labeller = Labeller(talkative(world))  # two frames become one
    long = "abcdeabcde"
    kept, _ = labeller.transcripts(hypotheses(("ab", -1.0), (long, -1.0), ("", -2.0)), 8, HEARD)
    assert kept == (WeightedTranscript(tuple(world.tokens.encode("ab")), 1.0),)
    for best in (long, ""):
        assert labeller.transcripts(hypotheses((best, -1.0), ("ab", -1.5)), 8, HEARD)[0] == ()
    assert labeller.transcripts([], 8, HEARD) == ((), 0.0)


def test_a_client_labels_what_has_no_text_and_keeps_the_rest(unheard: World) -> None:
    runtime, everyone = talkative(unheard), unheard.clients()
    written, unwritten = everyone["speaker/s00"], everyone["speaker/s01"]
    mixed = Client("mixed", np.concatenate([written[:2], unwritten[:3]]), runtime)
    labelled = Labeller(runtime).labelled(mixed, TeacherInstruction(HEARD))
    assert labelled.labels.texts.keys() == set(unwritten[:3].tolist())
    assert labelled.labels.stats["num_labelled"] == 3
    assert len(labelled.usable) == 5
    batch = runtime.with_labels(runtime.feed(labelled.usable), labelled.labels.texts)
    assert batch.weights is not None
    rows = batch.weights.view(5, -1).tolist()
    by_place = dict(zip(batch.indices, rows, strict=True))
    assert by_place[int(written[0])] == [1.0, 0.0, 0.0]
    assert all(sum(row) == pytest.approx(1.0) for row in rows)
    alone = Client("written", written, runtime)
    assert Labeller(runtime).labelled(alone, TeacherInstruction(HEARD)) is alone


# --- Nothing else decides them --------------------------------------------------------------------


def test_labels_depend_on_the_teacher_alone_whoever_was_before(unheard: World) -> None:
    runtime = talkative(unheard)
    clients = unheard.clients()
    other = {name: p + 0.3 * torch.randn_like(p) for name, p in runtime.base.items()}
    mine = Client("speaker/s02", clients["speaker/s02"], runtime)

    def labels(labeller: Labeller, instruction: TeacherInstruction) -> PseudoLabels:
        return labeller.labelled(mine, instruction).labels

    fresh = labels(Labeller(runtime), TeacherInstruction(HEARD))
    busy = Labeller(runtime)
    elsewhere = labels(busy, TeacherInstruction(HEARD, teacher=other))
    busy.labelled(Client("speaker/s03", clients["speaker/s03"], runtime), TeacherInstruction(HEARD))
    runtime.load(other)  # training left the model as it likes
    again, kept = labels(busy, TeacherInstruction(HEARD)), labels(busy, TeacherInstruction(HEARD))
    assert fresh.texts == again.texts == kept.texts
    assert fresh.texts != elsewhere.texts
    assert "label_seconds" not in kept.stats  # they were not made again
    assert labels(busy, TeacherInstruction(HEARD, teacher=dict(runtime.base))).texts == fresh.texts


def test_only_the_latest_labels_are_kept_and_the_others_are_made_again_the_same(unheard: World) -> None:
    runtime = talkative(unheard)
    clients = {name: Client(name, own, runtime) for name, own in unheard.clients().items()}
    first, second, third = sorted(clients)[:3]
    labeller = Labeller(runtime)

    def labels(name: str) -> PseudoLabels:
        return labeller.labelled(clients[name], TeacherInstruction(HEARD)).labels

    before = {name: labels(name) for name in (first, second)}
    labeller.max_utterances = sum(1 + len(own.texts) for own in before.values())
    assert "label_seconds" not in labels(first).stats  # both are there; the second was not asked for longer
    labels(third)
    assert "label_seconds" not in labels(third).stats
    again = labels(second)
    assert "label_seconds" in again.stats
    assert again.texts == before[second].texts


def test_another_setting_gives_other_labels(unheard: World) -> None:
    runtime = talkative(unheard)
    labeller, mine = Labeller(runtime), Client("speaker/s02", unheard.clients()["speaker/s02"], runtime)
    soft = labeller.labelled(mine, TeacherInstruction(HEARD)).labels.texts
    hard = labeller.labelled(mine, TeacherInstruction(replace(HEARD, num_hypotheses=1))).labels.texts
    assert {len(transcripts) for transcripts in hard.values()} == {1}
    assert {index: transcripts[0].tokens for index, transcripts in soft.items()} == {
        index: transcripts[0].tokens for index, transcripts in hard.items()
    }


def test_a_larger_model_in_a_folder_can_teach(unheard: World, tmp_path: Path) -> None:
    torch.manual_seed(5)
    large = CtcConfig(ConformerConfig(dim=32, num_layers=2, num_heads=2, kernel_size=3, stack=2))
    model = large.build(unheard.store.dim, unheard.tokens.size)
    Recognizer(Blueprint(FRONTEND, large), unheard.tokens, model).save(tmp_path / "large")
    runtime = talkative(unheard, dtype=torch.float32)
    mine = Client("speaker/s02", unheard.clients()["speaker/s02"], runtime)
    found = Labeller(runtime).labelled(mine, TeacherInstruction(HEARD, str(tmp_path / "large"))).labels.texts
    teacher = ClientRuntime(unheard.store, unheard.tokens, model, dict(model.named_parameters()))
    own = Labeller(teacher).labelled(replace(mine, runtime=teacher), TeacherInstruction(HEARD)).labels.texts
    assert found == own
    assert found != Labeller(runtime).labelled(mine, TeacherInstruction(HEARD)).labels.texts


def test_a_language_model_changes_what_the_teacher_hears(unheard: World, tmp_path: Path) -> None:
    save_ngram(estimate(["aa", "aa aa"], order=2), tmp_path / "lm.arpa")
    runtime = talkative(unheard)
    mine = Client("speaker/s02", unheard.clients()["speaker/s02"], runtime)
    fused = replace(HEARD, lm=Ngram(str(tmp_path / "lm.arpa"), weight=3.0))
    plain = Labeller(runtime).labelled(mine, TeacherInstruction(HEARD)).labels.texts
    assert Labeller(runtime).labelled(mine, TeacherInstruction(fused)).labels.texts != plain


def test_a_second_pass_ranks_by_the_sum_of_both_scores(world: World, tmp_path: Path) -> None:
    ngrams = estimate(["ab", "ab ab", "b"], order=2)
    save_ngram(ngrams, tmp_path / "lm.arpa")
    instruction = TeacherInstruction(
        replace(HEARD, second_pass=SecondPass(str(tmp_path / "lm.arpa"), weight=2.0))
    )
    teacher = open_teacher(instruction, talkative(world))
    first = hypotheses(("b a", -1.0), ("ab", -1.5), ("b", -9.0))
    totals = [
        h.score + 2 * log_prob
        for h, log_prob in zip(first, ngrams.score_sentences([h.text for h in first]), strict=True)
    ]
    ranked = teacher._ranked(first)
    order = sorted(range(3), key=lambda place: -totals[place])
    assert order != [0, 1, 2]
    assert [hypothesis.text for hypothesis in ranked] == [first[place].text for place in order]
    assert [hypothesis.score for hypothesis in ranked] == pytest.approx([totals[p] for p in order], rel=1e-6)
