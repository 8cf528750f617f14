from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.data.audio import BadAudioError, encode_flac, read_sound
from antiphon.data.importing.candidates import Skipped
from antiphon.data.importing.listing import assign_splits
from antiphon.data.transcripts import normalise, strange_characters

soundfile = pytest.importorskip("soundfile")


def encoded(**kwargs: str) -> bytes:
    file = io.BytesIO()
    samples = np.random.default_rng(0).integers(-999, 999, 4000).astype(np.int16)
    soundfile.write(file, samples, 16000, **kwargs)
    return file.getvalue()


FILES = [encoded(format="WAV"), encoded(format="FLAC"), encoded(format="OGG", subtype="OPUS")]


@given(st.text())
def test_normalising_twice_is_normalising_once(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once


@given(st.text(), st.text(min_size=1))
def test_a_text_is_its_alphabet_and_its_strange_characters(text: str, alphabet: str) -> None:
    strange = strange_characters(text, alphabet)
    assert set(text) - set(strange) <= set(alphabet)
    assert not strange_characters(text, alphabet + "".join(strange))


@given(
    st.integers(-32768, 32767).flatmap(
        lambda first: st.lists(st.integers(-32768, 32767)).map(lambda r: [first, *r])
    )
)
def test_sixteen_bit_samples_survive_encoding(integers: list[int]) -> None:
    samples = np.array(integers, np.float32) / 32768
    sound = read_sound(io.BytesIO(encode_flac(samples)))
    np.testing.assert_array_equal(sound.mono(), samples)


@settings(max_examples=300)
@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=8),
    st.data(),
)
def test_damaged_audio_is_read_or_refused_but_never_crashes(
    data: bytes, edits: list[tuple[int, int]], draw: st.DataObject
) -> None:
    damaged = bytearray(data)
    for place, value in edits:
        damaged[place] = value
    cut = draw.draw(st.integers(0, len(damaged)))
    try:
        sound = read_sound(io.BytesIO(bytes(damaged[:cut])), max_seconds=60)
    except BadAudioError:
        return
    assert np.isfinite(sound.samples).all()
    assert len(sound.samples) > 0


@given(
    st.sets(st.text(min_size=1), min_size=3, max_size=40),
    st.tuples(*3 * [st.integers(0, 10)]).filter(any),
    st.integers(),
)
def test_every_speaker_gets_one_split_and_every_split_a_speaker(
    speakers: set[str], parts: tuple[int, int, int], seed: int
) -> None:
    fractions = tuple(part / sum(parts) for part in parts)
    splits = assign_splits(speakers, fractions, seed)  # type: ignore[arg-type]
    assert splits.keys() == speakers
    names = ("pool", "heldout", "test")
    assert set(splits.values()) == {name for name, part in zip(names, parts, strict=True) if part}


@given(st.text(), st.text())
def test_what_was_skipped_can_always_be_printed(name: str, reason: str) -> None:
    skipped = Skipped(name, "m:1", reason)
    assert (skipped.id + skipped.reason).isprintable()
