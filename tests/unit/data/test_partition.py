from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from antiphon.data.partition import BySession, BySpeaker, Dirichlet, Iid, IidSpeakers


@dataclass
class Store:
    """Speakers z (utterances 0-5), a (6-9), m (10-11); sessions s0 and s1 in turn."""

    speaker_names: list[str] = field(default_factory=lambda: ["z", "a", "m"])
    session_names: list[str] = field(default_factory=lambda: ["s0", "s1"])
    speaker_codes: np.ndarray = field(default_factory=lambda: np.repeat([0, 1, 2], [6, 4, 2]))
    session_codes: np.ndarray = field(default_factory=lambda: np.arange(12) % 2)


def as_lists(clients: dict[str, np.ndarray]) -> dict[str, list[int]]:
    return {name: own.tolist() for name, own in clients.items()}


def test_by_speaker_gives_each_speaker_their_utterances_in_order_of_name() -> None:
    clients = BySpeaker()(Store(), np.array([11, 0, 7, 1, 6]), seed=0)
    assert as_lists(clients) == {"speaker/a": [6, 7], "speaker/m": [11], "speaker/z": [0, 1]}
    assert list(clients) == ["speaker/a", "speaker/m", "speaker/z"]


def test_by_session_gives_each_session_its_utterances() -> None:
    clients = BySession()(Store(), np.arange(5), seed=0)
    assert as_lists(clients) == {"session/s0": [0, 2, 4], "session/s1": [1, 3]}


def test_iid_parts_depend_on_the_seed_and_not_on_the_order_given() -> None:
    partition, store = Iid(3), Store()
    first = as_lists(partition(store, np.arange(12), seed=1))
    assert list(first) == ["part/0", "part/1", "part/2"]
    assert first == as_lists(partition(store, np.arange(12)[::-1], seed=1))
    assert first != as_lists(partition(store, np.arange(12), seed=2))


def test_parts_of_speakers_depend_on_the_seed_and_not_on_the_order_of_a_store() -> None:
    partition, store = IidSpeakers(2), Store()
    first = as_lists(partition(store, np.arange(12), seed=1))
    assert list(first) == ["part/0", "part/1"]
    assert first == as_lists(partition(store, np.arange(12)[::-1], seed=1))
    draws = {str(as_lists(partition(store, np.arange(12), seed=seed))) for seed in range(40)}
    assert len(draws) == 3  # one of three speakers is alone in the second part
    # The same speakers under other codes, as in another store.
    other = Store(speaker_names=["a", "m", "z"], speaker_codes=np.repeat([2, 0, 1], [6, 4, 2]))
    assert first == as_lists(partition(other, np.arange(12), seed=1))


def test_a_tiny_concentration_leaves_speakers_whole() -> None:
    clients = Dirichlet(parts=4, concentration=1e-6)(Store(), np.arange(12), seed=3)
    owners = [{int(Store().speaker_codes[index]) for index in own} for own in clients.values()]
    assert sum(len(speakers) for speakers in owners) == 3


def test_a_large_concentration_splits_every_speaker_evenly() -> None:
    store = Store(speaker_codes=np.repeat([0, 1, 2], 400))
    clients = Dirichlet(parts=4, concentration=1e6)(store, np.arange(1200), seed=0)
    for own in clients.values():
        counts = np.bincount(store.speaker_codes[own])
        assert (np.abs(counts - 100) <= 2).all()


def test_parts_that_get_nothing_are_left_out_and_the_others_keep_their_names() -> None:
    clients = Dirichlet(parts=50, concentration=0.01)(Store(), np.arange(12), seed=0)
    assert 0 < len(clients) <= 12
    assert all(len(own) for own in clients.values())
    assert {int(name.removeprefix("part/")) for name in clients} <= set(range(50))
    assert max(int(name.removeprefix("part/")) for name in clients) >= len(clients)


def test_a_speaker_is_split_the_same_way_whoever_else_is_there() -> None:
    partition, store = Dirichlet(parts=3, concentration=1.0), Store()
    together = partition(store, np.arange(12), seed=5)
    alone = partition(store, np.arange(6), seed=5)
    assert as_lists(alone) == {
        name: kept for name, own in together.items() if (kept := [i for i in own.tolist() if i < 6])
    }


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (Iid(13), "cannot divide 12 utterances into 13 parts"),
        (IidSpeakers(4), "cannot divide 3 speakers into 4 parts: choose fewer parts, or iid"),
        (IidSpeakers(0), "number of parts must be at least 1"),
        (Iid(0), "number of parts must be at least 1"),
        (Dirichlet(0, 1.0), "number of parts must be at least 1"),
        (Dirichlet(2, 0.0), "concentration must be above 0"),
        (Dirichlet(2, float("nan")), "concentration must be above 0"),
    ],
)
def test_impossible_partitions_are_refused(partition: Iid | IidSpeakers | Dirichlet, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(Store(), np.arange(12), seed=0)


def test_no_utterances_are_refused() -> None:
    with pytest.raises(ValueError, match="no utterances to divide"):
        BySpeaker()(Store(), np.array([], dtype=np.int64), seed=0)
