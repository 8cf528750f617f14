"""What holds of partitions, batches and tokens whatever they are given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.data.batches import plan_batches
from antiphon.data.partition import BySession, BySpeaker, Dirichlet, Iid, IidSpeakers, Partition
from antiphon.data.tokens import Characters, CharactersConfig, Unigram, UnigramConfig

ALPHABET = " abcdefghijklmnopqrstuvwxyz'"


@dataclass
class Store:
    speaker_names: list[str]
    session_names: list[str]
    speaker_codes: np.ndarray
    session_codes: np.ndarray


@st.composite
def stores(draw: st.DrawFn) -> Store:
    codes = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), min_size=1, max_size=60)
    speaker, session = np.array(draw(codes), dtype=np.int32).T
    return Store([f"p{i}" for i in range(8)], [f"s{i}" for i in range(4)], speaker, session)


partitions = st.one_of(
    st.just(BySpeaker()),
    st.just(BySession()),
    st.builds(Iid, parts=st.integers(1, 10)),
    st.builds(IidSpeakers, parts=st.integers(1, 8)),
    st.builds(Dirichlet, parts=st.integers(1, 10), concentration=st.floats(1e-8, 1e8)),
)


@given(store=stores(), partition=partitions, seed=st.integers(0, 2**63 - 1), data=st.data())
def test_every_utterance_is_in_exactly_one_client(
    store: Store, partition: Partition, seed: int, data: st.DataObject
) -> None:
    num = len(store.speaker_codes)
    indices = np.array(sorted(data.draw(st.sets(st.integers(0, num - 1), min_size=1))))
    if isinstance(partition, Iid) and partition.parts > len(indices):
        partition = Iid(len(indices))
    num_speakers = len(np.unique(store.speaker_codes[indices]))
    if isinstance(partition, IidSpeakers) and partition.parts > num_speakers:
        partition = IidSpeakers(num_speakers)
    clients = partition(store, indices, seed)
    assert sorted(index for own in clients.values() for index in own.tolist()) == indices.tolist()
    assert all(len(own) > 0 and (np.diff(own) > 0).all() for own in clients.values())


@given(store=stores(), parts=st.integers(1, 60), seed=st.integers(0, 1000))
def test_iid_parts_differ_by_one_at_most(store: Store, parts: int, seed: int) -> None:
    num = len(store.speaker_codes)
    sizes = [len(own) for own in Iid(min(parts, num))(store, np.arange(num), seed).values()]
    assert max(sizes) - min(sizes) <= 1


@given(store=stores(), parts=st.integers(1, 8), seed=st.integers(0, 1000), data=st.data())
def test_parts_of_speakers_share_no_speaker_and_differ_by_one_at_most(
    store: Store, parts: int, seed: int, data: st.DataObject
) -> None:
    num = len(store.speaker_codes)
    indices = np.array(data.draw(st.permutations(range(num))))
    partition = IidSpeakers(min(parts, len(np.unique(store.speaker_codes))))
    clients = partition(store, indices, seed)
    speakers = [set(store.speaker_codes[own].tolist()) for own in clients.values()]
    assert len(clients) == partition.parts
    assert sum(len(own) for own in speakers) == len(set().union(*speakers))
    assert max(map(len, speakers)) - min(map(len, speakers)) <= 1
    again = partition(store, np.sort(indices), seed)
    assert all(np.array_equal(again[name], own) for name, own in clients.items())


@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=80),
    max_frames=st.integers(1, 5000),
    seed=st.none() | st.integers(0, 1000),
    data=st.data(),
)
def test_batches_hold_every_utterance_once_and_keep_to_the_budget(
    lengths: list[int], max_frames: int, seed: int | None, data: st.DataObject
) -> None:
    num_frames = np.array(lengths, dtype=np.int32)
    indices = np.array(sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1)))), dtype=np.int64)
    generator = None if seed is None else np.random.default_rng(seed)
    plan = plan_batches(num_frames, indices, max_frames, generator)
    assert sorted(index for batch in plan for index in batch.tolist()) == indices.tolist()
    for batch in plan:
        assert len(batch) == 1 or len(batch) * num_frames[batch].max() <= max_frames
        assert len(batch) > 0


words = st.lists(st.text(ALPHABET.strip(), min_size=1, max_size=8), max_size=8)


@pytest.fixture(scope="module")
def unigram() -> Unigram:
    return UnigramConfig(33).fit(["turn on the kitchen light", "what is the time", "set the timer"], ALPHABET)


@given(words=words)
def test_text_in_the_alphabet_survives_unigram_tokens(unigram: Unigram, words: list[str]) -> None:
    text = " ".join(words)
    assert unigram.decode(unigram.encode(text)) == text


@given(words=words)
def test_text_in_the_alphabet_survives_character_tokens(words: list[str]) -> None:
    tokens = CharactersConfig().fit([], ALPHABET)
    text = " ".join(words)
    assert tokens.decode(tokens.encode(text)) == text
    assert len(tokens.encode(text)) == len(text)


@given(texts=st.lists(st.text(min_size=1), min_size=1, max_size=5))
@settings(max_examples=50)
def test_characters_fitted_on_texts_know_all_of_them(texts: list[str]) -> None:
    tokens: Characters = CharactersConfig().fit(texts, None)
    for text in texts:
        assert 1 not in tokens.encode(text)
        assert tokens.decode(tokens.encode(text)) == text
