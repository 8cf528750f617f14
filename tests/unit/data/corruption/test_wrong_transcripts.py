from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World

from antiphon.data.corruption.wrong_transcripts import OfOthers, Shuffled, deranged
from antiphon.data.partition import BySpeaker


@given(st.lists(st.sampled_from("abcdef"), max_size=12), st.integers(0, 99))
def test_as_few_as_possible_keep_their_text(texts: list[str], seed: int) -> None:
    sources = deranged(texts, np.random.default_rng(seed))
    assert sorted(sources) == list(range(len(texts)))
    kept = sum(texts[source] == text for source, text in zip(sources, texts, strict=True))
    # The commonest text has m copies and n - m other places to go to: the rest must stay.
    most = max(Counter(texts).values(), default=0)
    assert kept == max(0, 2 * most - len(texts))


@given(st.integers(2, 30), st.integers(0, 99))
def test_without_copies_it_is_a_derangement(num: int, seed: int) -> None:
    sources = deranged([str(n) for n in range(num)], np.random.default_rng(seed))
    assert all(source != place for place, source in enumerate(sources))


def test_every_derangement_of_three_comes_up() -> None:
    seen = Counter(tuple(deranged(["a", "b", "c"], np.random.default_rng(seed))) for seed in range(200))
    assert seen.keys() == {(1, 2, 0), (2, 0, 1)}
    assert min(seen.values()) > 60


def test_shuffled_texts_are_the_clients_own(world: World) -> None:
    clients = dict(list(world.clients().items())[:3])
    wrong = Shuffled()(world.store, clients, world.store.where("pool"), seed=0)
    assert sorted(wrong) == sorted(np.concatenate(list(clients.values())).tolist())
    for own in clients.values():
        right = [world.store.text(int(index)) for index in own]
        assert sorted(wrong[int(index)] for index in own) == sorted(right)
        assert all(wrong[int(index)] != text for index, text in zip(own, right, strict=True))


def test_what_a_client_gets_depends_on_no_other_client(world: World) -> None:
    clients, pool = world.clients(), world.store.where("pool")
    for kind in (Shuffled(), OfOthers()):
        together = kind(world.store, clients, pool, seed=3)
        for name, own in clients.items():
            alone = kind(world.store, {name: own}, pool, seed=3)
            assert alone == {index: together[index] for index in own.tolist()}
        assert together != kind(world.store, clients, pool, seed=4)


def test_transcripts_of_others_are_among_the_nearest_in_length(world: World) -> None:
    store, pool = world.store, world.store.where("pool")
    wrong = OfOthers(nearest=3)(store, world.clients(), pool, seed=0)
    for index, text in wrong.items():
        own, speaker = store.text(index), store.speaker(index)
        others = [store.text(int(other)) for other in pool if store.speaker(int(other)) != speaker]
        distances = sorted(abs(len(other) - len(own)) for other in others if other != own)
        assert text != own
        assert text in others
        assert abs(len(text) - len(own)) <= distances[2]


def test_a_pool_in_which_nobody_else_speaks_is_refused(world: World) -> None:
    pool = world.store.where("pool", ["s00"])
    with pytest.raises(ValueError, match="utterance s00-0 of speaker/s00: shuffle the client's own"):
        OfOthers()(world.store, BySpeaker()(world.store, pool, 0), pool, seed=0)


def test_none_to_draw_from_is_refused() -> None:
    with pytest.raises(ValueError, match="nearest is a number of transcripts"):
        OfOthers(nearest=0)
