"""Encoded audio to samples and back: with soundfile if it is installed, else with `wave` for plain WAV.

Several channels become their mean, unless the source names one channel.
"""

from __future__ import annotations

import io
import math
import wave
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

SAMPLE_RATE = 16000
# Damaged headers hold any number: nothing outside these is speech, and memory is not allocated for it.
MAX_RATE, MAX_CHANNELS, MAX_FRAMES = 384_000, 64, 1 << 40
# Peaks of loud recordings go a little beyond full scale. Ten times (20 dB) is no peak: such a file holds
# integers as floats, or is damaged.
MAX_LEVEL = 10.0
# Segment ends are rounded by the tools that write them: this far past the end of a file is no error.
SLACK_SECONDS = 0.1
INSTALL = "pip install 'antiphon[audio]'"


class BadAudioError(ValueError):
    """Audio that cannot be used. The text before the first colon is the kind of fault."""


@dataclass(frozen=True)
class Sound:
    """Samples [num_samples, num_channels] float32; `is_whole` if they are all of the file.

    Full scale is 1; files of floats may go beyond it, up to `MAX_LEVEL`.
    """

    samples: np.ndarray
    rate: int
    is_whole: bool

    def __post_init__(self) -> None:
        highest = float(np.abs(self.samples).max(initial=0.0))  # NaN if any sample is
        if not math.isfinite(highest):
            raise BadAudioError("unreadable audio: samples that are not numbers (NaN or infinity)")
        if highest > MAX_LEVEL:
            raise BadAudioError(
                f"samples out of range: up to {highest:.3g}, full scale is 1 and {MAX_LEVEL:g} the limit; "
                "write them again between -1 and 1"
            )

    @property
    def num_channels(self) -> int:
        return int(self.samples.shape[1])

    def mono(self, channel: int | None = None) -> np.ndarray:
        """Return one channel [num_samples]; without a channel, the mean of all."""
        if channel is not None and not 0 <= channel < self.num_channels:
            raise BadAudioError(f"no such channel: {channel} of {self.num_channels}")
        if channel is None and self.num_channels > 1:
            return self.samples.mean(axis=1, dtype=np.float32)
        return np.ascontiguousarray(self.samples[:, channel or 0])


def decode(data: bytes) -> tuple[np.ndarray, int]:
    """Return the samples of an encoded file, [num_samples] float32 mono, and their rate."""
    sound = read_sound(io.BytesIO(data))
    return sound.mono(), sound.rate


def read_sound(
    file: BinaryIO, start: float = 0.0, stop: float | None = None, max_seconds: float = math.inf
) -> Sound:
    """Read the part of an open file between two times in seconds; the rest is not decoded."""
    _refuse_truncated(file)
    try:
        import soundfile
    except ImportError:
        return _read_wave(file, start, stop, max_seconds)
    try:
        with soundfile.SoundFile(file) as sound:
            return _read_part(sound, start, stop, max_seconds)
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: a name that ends in .raw
        # libsndfile puts the address of the file object into its message: keep only what follows it.
        raise BadAudioError(f"unreadable audio: {str(error).rpartition('>: ')[2]}") from None


def _read_part(sound: Any, start: float, stop: float | None, max_seconds: float) -> Sound:
    if sound.frames >= MAX_FRAMES:
        raise BadAudioError("length unknown: the header does not say how long the audio is, encode it again")
    first, last = _bounds(sound.frames, sound.samplerate, sound.channels, start, stop, max_seconds)
    if first:
        sound.seek(first)
    samples = sound.read(last - first, dtype="float32", always_2d=True)
    if len(samples) < last - first:
        raise BadAudioError(f"truncated audio: {len(samples)} of {last - first} samples could be read")
    return Sound(samples, sound.samplerate, last - first == sound.frames)


def _read_wave(file: BinaryIO, start: float, stop: float | None, max_seconds: float) -> Sound:
    try:
        with wave.open(file, "rb") as sound:
            width, rate, channels = sound.getsampwidth(), sound.getframerate(), sound.getnchannels()
            if width not in (2, 4):
                raise ValueError(f"WAV files of {8 * width} bits need soundfile: {INSTALL}")
            first, last = _bounds(sound.getnframes(), rate, channels, start, stop, max_seconds)
            sound.setpos(first)
            data = sound.readframes(last - first)
            is_whole = last - first == sound.getnframes()
    except (wave.Error, EOFError, RuntimeError):  # RuntimeError: a part that is longer than the file
        raise ValueError(f"audio other than PCM WAV needs soundfile: {INSTALL}") from None
    integers = np.frombuffer(data, dtype=f"<i{width}").reshape(-1, channels)
    return Sound(integers.astype(np.float32) / np.float32(2 ** (8 * width - 1)), rate, is_whole)


def _bounds(
    num_frames: int, rate: int, channels: int, start: float, stop: float | None, max_seconds: float
) -> tuple[int, int]:
    """Return the first and last sample of a part; a part within 10 ms of the whole file is the whole file."""
    if not (0 < rate <= MAX_RATE and 0 < channels <= MAX_CHANNELS):
        raise BadAudioError(f"unreadable audio: {rate} Hz with {channels} channels cannot be speech")
    if num_frames <= 0:
        raise BadAudioError("no audio: the file holds no samples")
    seconds = num_frames / rate
    end = seconds if stop is None else stop
    if not (0 <= start < end <= seconds + SLACK_SECONDS and start < seconds):
        raise BadAudioError(f"segment out of range: {start:g} s to {end:g} s of a file of {seconds:.3f} s")
    if end - start > max_seconds:
        raise BadAudioError(f"too long: {end - start:.2f} s, more than {max_seconds:g} s (--max-seconds)")
    if start == 0 and abs(end - seconds) < 0.01:
        return 0, num_frames
    first, last = round(start * rate), min(round(end * rate), num_frames)
    if last <= first:
        raise BadAudioError("no audio: the segment is shorter than one sample")
    return first, last


def _refuse_truncated(file: BinaryIO) -> None:
    """Compare a file with its header: libsndfile reads a truncated WAV or Ogg file as a shorter one."""
    head = file.read(12)
    size = file.seek(0, io.SEEK_END)
    if head[:4] == b"RIFF":
        promised = int.from_bytes(head[4:8], "little") + 8
        # Programs that write streams leave 0 or the largest values in the header.
        if 8 < promised < 0x7FFFFF00 and size + 1 < promised:
            raise BadAudioError(f"truncated audio: {size} bytes, the WAV header says {promised}")
    elif head[:4] == b"OggS":
        file.seek(max(0, size - (1 << 16)))
        tail = file.read()
        page = tail[tail.rfind(b"OggS\0") :]
        num_segments = page[26] if len(page) > 26 else 0
        body = page[27 : 27 + num_segments]
        is_last = len(page) > 26 and bool(page[5] & 4)
        if not is_last or len(page) < 27 + num_segments + sum(body):
            raise BadAudioError("truncated audio: the Ogg stream has no complete last page")
    file.seek(0)


def resample(samples: np.ndarray, rate: int) -> np.ndarray:
    """Resample mono samples [num_samples] to float32 at 16 kHz."""
    if rate == SAMPLE_RATE:
        return samples
    try:
        import soxr
    except ImportError:
        raise ValueError(f"audio at {rate} Hz has to be resampled, which needs soxr: {INSTALL}") from None
    resampled: np.ndarray = soxr.resample(samples, rate, SAMPLE_RATE, quality="HQ")
    return resampled.astype(np.float32, copy=False)


def at_speed(samples: np.ndarray, speed: float) -> np.ndarray:
    """Play mono samples at 16 kHz faster, and higher, by this factor: 1.1 gives about 9 % fewer samples."""
    return resample(samples, round(SAMPLE_RATE * speed))


def encode_flac(samples: np.ndarray) -> bytes:
    """Encode mono samples [num_samples] in [-1, 1] at 16 kHz as 16-bit FLAC: lossless for 16-bit sources.

    The same samples give the same bytes (with the same libsndfile).
    """
    try:
        import soundfile
    except ImportError:
        raise ValueError(f"writing FLAC needs soundfile: {INSTALL}") from None
    # libsndfile would scale by 32767, which changes 16-bit samples.
    integers = np.rint(samples * np.float32(32768)).clip(-32768, 32767).astype(np.int16)
    file = io.BytesIO()
    soundfile.write(file, integers, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    return file.getvalue()
