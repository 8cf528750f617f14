from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World

from antiphon import config
from antiphon.data.corruption.corrupted_clients import CorruptedClients, Corruption
from antiphon.data.corruption.distortion import Babble, Distortion, Room, White
from antiphon.data.corruption.wrong_transcripts import OfOthers, Shuffled
from antiphon.data.partition import BySession, BySpeaker, Dirichlet, Iid, Partition

SHUFFLED = Corruption(transcripts=Shuffled())


def chosen(world: World, corruption: Corruption, seed: int = 0) -> CorruptedClients:
    return corruption.choose(world.store, world.store.where("pool"), seed)


# --- Who ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.05, 1), (0.25, 2), (0.5, 4), (1.0, 8)])
def test_a_fraction_of_the_clients_is_chosen_and_one_at_least(
    world: World, fraction: float, count: int
) -> None:
    assert len(chosen(world, replace(SHUFFLED, fraction=fraction)).clients) == count


def test_a_larger_fraction_keeps_the_clients_of_a_smaller_one(world: World) -> None:
    few, more = (set(chosen(world, replace(SHUFFLED, fraction=share)).clients) for share in (0.25, 0.5))
    assert few < more


def test_who_is_chosen_is_settled_by_the_corruptions_own_seed(world: World) -> None:
    half = replace(SHUFFLED, fraction=0.5)
    assert chosen(world, half, seed=1).clients.keys() == chosen(world, half, seed=2).clients.keys()
    others = [chosen(world, replace(half, seed=seed)).clients.keys() for seed in range(5)]
    assert any(other != others[0] for other in others)


def test_names_alone_matter_not_what_clients_have(world: World) -> None:
    pool = world.store.where("pool")
    half = replace(SHUFFLED, fraction=0.5)
    every_other = half.choose(world.store, pool[::2], 0)
    assert every_other.clients.keys() == chosen(world, half).clients.keys()


def test_clients_can_be_named(world: World) -> None:
    assert list(chosen(world, replace(SHUFFLED, names=("speaker/s03", "speaker/s01"))).clients) == [
        "speaker/s01",
        "speaker/s03",
    ]


@pytest.mark.parametrize("clients", [BySpeaker(), BySession(), Iid(5), Dirichlet(5, 0.5)], ids=repr)
def test_clients_of_a_run_dealt_out_in_the_same_way_are_wholly_corrupted_or_clean(
    world: World, clients: Partition
) -> None:
    found = chosen(world, replace(SHUFFLED, fraction=0.4, clients=clients), seed=7)
    shares = found.shares(clients(world.store, world.store.where("pool"), 7))
    assert shares == dict.fromkeys(found.clients, 1.0)


def test_clients_dealt_out_otherwise_are_corrupted_in_part(world: World) -> None:
    pool = world.store.where("pool")
    bad = {f"speaker/{name}" for name in ("s00", "s01", "s02")}
    found = chosen(world, replace(SHUFFLED, names=tuple(sorted(bad))))
    parts = Iid(4)(world.store, pool, 0)
    for name, own in parts.items():
        count = sum(f"speaker/{world.store.speaker(int(index))}" in bad for index in own)
        assert found.shares(parts).get(name, 0.0) == pytest.approx(count / len(own))


# --- Fewer utterances -----------------------------------------------------------------------------


@given(keep=st.floats(0.01, 1.0), most=st.integers(0, 6))
def test_what_is_kept_and_what_is_dropped_make_the_whole(world: World, keep: float, most: int) -> None:
    found = chosen(world, Corruption(fraction=0.5, keep=keep, max_utterances=most, transcripts=Shuffled()))
    clients = world.clients()
    for name, kept in found.clients.items():
        wanted = min(int(np.ceil(keep * len(clients[name]))), most or 99)
        assert len(kept) == wanted >= 1
    everything = np.concatenate([clients[name] for name in found.clients])
    np.testing.assert_array_equal(
        np.sort(np.append(found.utterances, np.flatnonzero(found.is_dropped))), np.sort(everything)
    )


def test_a_smaller_share_is_part_of_a_larger_one(world: World) -> None:
    few, more = (chosen(world, Corruption(names=("speaker/s00",), keep=keep)) for keep in (0.4, 0.8))
    assert set(few.utterances) < set(more.utterances)


def test_a_run_loses_what_was_dropped_and_clients_without_anything(world: World) -> None:
    found = chosen(world, Corruption(names=("speaker/s00",), max_utterances=1))
    singles = Iid(len(world.store.where("pool")))(world.store, world.store.where("pool"), 0)
    left = found.without_dropped(singles)
    assert len(left) == len(singles) - found.is_dropped.sum()
    assert found.without_dropped(world.clients())["speaker/s00"].tolist() == found.utterances.tolist()
    clean = {name: own for name, own in world.clients().items() if name != "speaker/s00"}
    for name, own in clean.items():
        np.testing.assert_array_equal(found.without_dropped(world.clients())[name], own)


# --- Settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "corruption",
    [
        Corruption(),
        Corruption(0.3, audio=Distortion(1.1, Room(0.4, 3.0), Babble(5.0, 4), 0.01), seed=3),
        Corruption(
            names=("part/1",), clients=Iid(7), audio=Distortion(noise=White()), keep=0.5, max_utterances=9
        ),
        Corruption(0.5, clients=Dirichlet(4, 0.1), transcripts=OfOthers(5)),
    ],
    ids=["none", "audio", "parts", "texts"],
)
def test_settings_come_back_as_they_were_written(corruption: Corruption) -> None:
    assert config.from_dict(Corruption, config.to_dict(corruption)) == corruption


def test_settings_are_made_one_by_one() -> None:
    made = config.override(
        Corruption(),
        [
            "fraction=0.3",
            "audio.noise=babble",
            "audio.noise.snr=0",
            "audio.room.t60=0.5",
            "transcripts=of_others",
        ],
    )
    assert made == Corruption(
        0.3, audio=Distortion(room=Room(0.5), noise=Babble(0.0)), transcripts=OfOthers()
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["fraction=1.5", "keep=0.5"], "fraction is a share of the clients between 0 and 1, not 1.5"),
        (["fraction=0.5", "names=a", "keep=0.5"], "by fraction or by names, not by both"),
        (["names=a,a", "keep=0.5"], "named twice"),
        (["keep=0"], "keep is a share of utterances"),
        (["max_utterances=-1"], "max_utterances must be at least 0"),
        (["fraction=0.5"], "nothing is done to them"),
        (["audio.noise=bable"], "did you mean 'babble'"),
        (["audio.noise=white", "audio.noise.snr=.nan"], "audio.noise.snr: nan is not a finite number"),
    ],
    ids=["fraction", "both", "twice", "keep", "max_utterances", "harmless", "noise", "snr"],
)
def test_mistakes_in_settings_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.override(Corruption(), settings)


def test_a_client_that_does_not_exist_is_named_with_one_that_does(world: World) -> None:
    with pytest.raises(ValueError, match="no client 'speaker/s99' among the 8 federated ones; did you mean"):
        chosen(world, replace(SHUFFLED, names=("speaker/s99",)))


def test_more_clients_than_utterances_are_refused(world: World) -> None:
    with pytest.raises(ValueError, match=r"corruption.clients: cannot divide 36 utterances into 999 parts"):
        chosen(world, replace(SHUFFLED, fraction=0.5, clients=Iid(999)))
