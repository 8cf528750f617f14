"""Lhotse manifests: recordings with supervisions, or cuts, as .jsonl or .jsonl.gz.

Lhotse itself reads each line, so all versions of the format that it knows can be imported. It gets one line
at a time, because a malformed line would end its own iterators. It is never asked for audio, because it would
run commands or fetch URLs. One supervision is one utterance. `client_key` and `session_key` may name fields
of a supervision's `custom`. The end of a name such as `x_recordings_dev.jsonl.gz` is the split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from antiphon.data.importing.candidates import (
    Candidate,
    ImportOptions,
    RefusedError,
    Skipped,
    find_audio,
    first_row,
    json_rows,
)
from antiphon.data.importing.formats import FORMATS

NAME = re.compile(r"(.*_)?(recordings|cuts)(?:[_-](?P<split>.+))?\.jsonl(\.gz)?")


@FORMATS.named("lhotse")
class LhotseManifests:
    """An `Importer` of Lhotse manifests."""

    looks_for = (
        "Lhotse manifests, *recordings*.jsonl[.gz] with *supervisions*.jsonl[.gz], or *cuts*.jsonl[.gz]"
    )

    def recognises(self, source: Path) -> bool:
        return bool(_manifests(source))

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        for manifest in _manifests(source):
            name = NAME.fullmatch(manifest.name)
            split = name["split"] if name else None
            supervisions = _supervisions(manifest)
            cuts = _cuts(manifest) if supervisions is None else _pairs(manifest, supervisions)
            for item in cuts:
                if isinstance(item, Skipped):
                    yield item
                    continue
                where, recording, supervision, start = item
                try:
                    yield _candidate(where, recording, supervision, start, split, manifest.parent, options)
                except RefusedError as reason:
                    yield Skipped(str(supervision.id), where, str(reason))


def _manifests(source: Path) -> list[Path]:
    """Files of cuts, and files of recordings with a file of supervisions beside them."""
    paths = (
        [source] if source.is_file() else sorted(source.glob("*.jsonl")) + sorted(source.glob("*.jsonl.gz"))
    )
    rows = {path: first_row(path) for path in paths if NAME.fullmatch(path.name) or path == source}
    return [
        path
        for path, row in rows.items()
        if "supervisions" in row or "tracks" in row or ("sources" in row and _supervisions(path))
    ]


def _supervisions(recordings: Path) -> Path | None:
    path = recordings.with_name(recordings.name.replace("recordings", "supervisions"))
    return path if path != recordings and path.is_file() else None


Item = tuple[str, Any, Any, float]  # place, recording, supervision, start of the cut


def _objects(path: Path) -> Iterator[tuple[str, Any] | Skipped]:
    try:
        from lhotse.serialization import deserialize_item
    except ImportError:
        raise ValueError("Lhotse manifests need Lhotse: pip install 'antiphon[lhotse]'") from None
    for row in json_rows(path):
        if isinstance(row, Skipped):
            yield row
            continue
        where, fields = row
        try:
            yield where, deserialize_item(dict(fields))
        except Exception as error:  # Lhotse's constructors raise many kinds at unknown fields
            name = str(fields.get("id", ""))
            yield Skipped(name, where, f"malformed manifest: Lhotse cannot read the line ({error!r})")


def _pairs(recordings: Path, supervisions: Path) -> Iterator[Item | Skipped]:
    known = {}
    for row in _objects(recordings):
        if isinstance(row, Skipped):
            yield row
        elif hasattr(row[1], "sources"):
            known[row[1].id] = row[1]
    for row in _objects(supervisions):
        if isinstance(row, Skipped):
            yield row
            continue
        where, supervision = row
        recording = known.get(getattr(supervision, "recording_id", None))
        if recording is None:
            yield Skipped(str(supervision.id), where, "missing recording: no recording has the id it names")
        else:
            yield where, recording, supervision, 0.0


def _cuts(path: Path) -> Iterator[Item | Skipped]:
    for row in _objects(path):
        if isinstance(row, Skipped):
            yield row
            continue
        where, cut = row
        if type(cut).__name__ not in ("MonoCut", "MultiCut") or cut.recording is None:
            yield Skipped(str(cut.id), where, f"unusable cut: a {type(cut).__name__} without one recording")
            continue
        if not cut.supervisions:
            yield Skipped(str(cut.id), where, "no text: the cut has no supervision")
        for supervision in cut.supervisions:
            yield where, cut.recording, supervision, cut.start


def _candidate(
    where: str,
    recording: Any,
    supervision: Any,
    start: float,
    split: str | None,
    folder: Path,
    options: ImportOptions,
) -> Candidate:
    for transform in recording.to_dict().get("transforms") or ():
        # We resample ourselves; any other transform changes the speech.
        if transform["name"] != "Resample":
            raise RefusedError(
                f"transformed recording: {transform['name']} is not applied here, save the audio first"
            )
    custom: Mapping[str, Any] = supervision.custom or {}
    speaker = supervision.speaker if options.client_key == "speaker" else custom.get(options.client_key)
    if speaker is None:
        keys = ", ".join(["speaker", *sorted(custom)])
        raise RefusedError(
            f"no field {options.client_key!r}: the supervision does not say its client (it has {keys})"
        )
    source, channel = _source(recording, supervision.channel)
    if source.type != "file":
        raise RefusedError(f"not a file: sources of type {source.type!r} are not run or fetched")
    return Candidate(
        id=supervision.id,
        speaker=str(speaker),
        session=str(custom.get(options.session_key, speaker)),
        split=split,
        text=supervision.text or "",
        audio=find_audio(str(source.source), folder, options),
        where=where,
        start=start + supervision.start,
        stop=start + supervision.start + supervision.duration,
        channel=channel,
        extra=_plain(supervision, custom),
    )


def _source(recording: Any, channel: int | list[int]) -> tuple[Any, int | None]:
    """The source of a supervision, and the channel in it; several channels are averaged."""
    if isinstance(channel, int):
        for source in recording.sources:
            if channel in source.channels:
                return source, source.channels.index(channel)
    elif len(recording.sources) == 1:
        return recording.sources[0], None
    raise RefusedError(f"no such channel: {channel} is not in one source of recording {recording.id}")


def _plain(supervision: Any, custom: Mapping[str, Any]) -> dict[str, Any]:
    """Fields to keep: plain values, no arrays."""
    fields = {"language": supervision.language, "gender": supervision.gender, **custom}
    return {key: value for key, value in fields.items() if isinstance(value, str | int | float | bool)}
