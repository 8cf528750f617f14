"""LibriSpeech as unpacked: part/speaker/chapter/speaker-chapter.trans.txt beside the FLAC files.

The split is the part (dev-clean), the session is speaker-chapter. Lhotse is not used here: the folders hold
everything needed, and its `prepare_librispeech` would open every audio file once more, to write manifests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from antiphon.data.importing import candidates
from antiphon.data.importing.candidates import Candidate, ImportOptions, RefusedError, Skipped
from antiphon.data.importing.formats import FORMATS
from antiphon.data.transcripts import numbered_lines

# From the folder with all parts (or with LibriSpeech/), from one part, or from one speaker.
DEPTHS = ("*/*.trans.txt", "*/*/*.trans.txt", "*/*/*/*.trans.txt", "*/*/*/*/*.trans.txt")


@FORMATS.named("librispeech")
class LibriSpeech:
    """An `Importer` of LibriSpeech folders."""

    looks_for = "LibriSpeech folders, [part/]speaker/chapter/*.trans.txt with .flac files"

    def recognises(self, source: Path) -> bool:
        return source.is_dir() and any(next(source.glob(depth), None) for depth in DEPTHS)

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        for path in sorted(path for depth in DEPTHS for path in source.glob(depth)):
            relative = str(path.relative_to(source))
            try:
                transcripts = candidates.locate(relative, source, options)
                yield from _read_chapter(transcripts, path.parent, source, options)
            except RefusedError as reason:
                yield Skipped("", relative, str(reason))


def _read_chapter(
    transcripts: Path, chapter: Path, source: Path, options: ImportOptions
) -> Iterator[Candidate | Skipped]:
    speaker, folder = chapter.absolute().parent, chapter.relative_to(source)
    without_text = {path.stem for path in chapter.glob("*.flac")}
    for where, line in numbered_lines(transcripts):
        utterance, _, text = line.partition(" ")
        without_text.discard(utterance)
        yield Candidate(
            id=utterance,
            speaker=speaker.name,
            session=f"{speaker.name}-{chapter.name}",
            split=speaker.parent.name,
            text=text,
            audio=candidates.find_audio(str(folder / f"{utterance}.flac"), source, options),
            where=where,
        )
    for utterance in sorted(without_text):
        yield Skipped(utterance, transcripts.name, "no text: the audio has no line among the transcripts")
