from __future__ import annotations

import numpy as np
import pytest

from antiphon.decoding.attention_beam import AttentionBeam
from antiphon.decoding.ctc_beam import CtcBeam
from antiphon.decoding.greedy import recognise
from antiphon.decoding.hypothesis import read_nbest, write_nbest
from antiphon.decoding.searching import search_all


@pytest.mark.parametrize(("kind", "beam"), [("ctc", CtcBeam(1)), ("las", AttentionBeam(1))])
def test_beams_of_one_hear_what_greedy_decoding_hears(world, kind, beam):
    model, indices = world.bench(kind).model, world.store.where("test")[::-1]
    found = search_all(beam, model, world.tokens, world.store, indices)
    heard = recognise(model, world.tokens, world.store, indices)
    texts = {entry.id: entry.hypotheses[0].text for entry in found.lists}
    assert texts == {world.store.id(i): " ".join(text.split()) for i, text in heard.items()}
    assert [entry.id for entry in found.lists] == [world.store.id(i) for i in indices]
    assert found.real_time_factor > 0


def test_lists_know_who_spoke_and_survive_a_file(world, tmp_path):
    indices = world.store.where("heldout")
    lists = search_all(CtcBeam(4), world.bench().model, world.tokens, world.store, indices).lists
    first, place = lists[0], int(indices[0])
    assert (first.reference, first.speaker, first.session, first.split) == (
        world.store.text(place),
        world.store.speaker(place),
        world.store.session(place),
        "heldout",
    )
    write_nbest(tmp_path / "lists.jsonl", lists)
    assert tuple(read_nbest(tmp_path / "lists.jsonl")) == lists


def test_no_utterances_give_no_lists(world):
    nothing = np.zeros(0, dtype=np.int64)
    assert search_all(CtcBeam(), world.bench().model, world.tokens, world.store, nothing).lists == ()
