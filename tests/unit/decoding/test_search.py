from __future__ import annotations

import pytest
import torch
from world import MODELS, World

from antiphon.decoding.beams.attention_beam import AttentionBeam, Penalties
from antiphon.decoding.nbest import read_nbest, write_nbest
from antiphon.decoding.search import beam_for, recognise, search


@pytest.mark.parametrize("name", MODELS)
def test_a_beam_of_one_hears_what_greedy_decoding_hears(world: World, name: str) -> None:
    model = world.runtime(name).model
    indices = world.store.where("test")
    lists = list(search(model, world.tokens, world.store, indices, beam_for(model, 1)))
    heard = recognise(model, world.tokens, world.store, indices)
    assert {entry.id: entry.hypotheses[0].text.split() for entry in lists} == {
        world.store.id(index): text.split() for index, text in heard.items()
    }


def test_lists_know_whose_they_are_and_what_was_said(world: World, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model, indices = world.runtime().model, world.store.where("heldout")
    seen = []
    lists = list(
        search(
            model, world.tokens, world.store, indices, beam_for(model, 4), progress=lambda *p: seen.append(p)
        )
    )
    place = {world.store.id(index): index for index in indices}
    assert place.keys() == {entry.id for entry in lists}
    for entry in lists:
        index = place[entry.id]
        assert (entry.reference, entry.speaker) == (world.store.text(index), world.store.speaker(index))
        assert (entry.session, entry.split) == (world.store.session(index), "heldout")
        assert 1 <= len(entry.hypotheses) <= 4
        scores = [hypothesis.score for hypothesis in entry.hypotheses]
        assert scores == sorted(scores, reverse=True)
    assert seen[-1] == (len(indices), len(indices))
    write_nbest(tmp_path / "lists.jsonl", lists)
    assert list(read_nbest(tmp_path / "lists.jsonl")) == lists


def test_penalties_are_for_attention_models(world: World) -> None:
    penalties = Penalties(bonus=0.5)
    assert beam_for(world.runtime("las").model, 4, None, penalties) == AttentionBeam(4, penalties)
    for name in ("ctc", "transducer"):
        with pytest.raises(ValueError, match="has no use for them"):
            beam_for(world.runtime(name).model, 4, None, penalties)


def test_a_model_without_a_beam_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"no beam search for a Linear: give it a method beam\(width"):
        beam_for(torch.nn.Linear(1, 1), 4)  # type: ignore[arg-type]


class Stranger:
    """A model of another package, with a search of its own."""

    def beam(self, *settings: object) -> tuple[object, ...]:
        return settings


def test_a_model_of_another_package_brings_its_own_search() -> None:
    penalties = Penalties(bonus=0.5)
    assert beam_for(Stranger(), 3, None, penalties) == (3, None, penalties)  # type: ignore[arg-type,comparison-overlap]
