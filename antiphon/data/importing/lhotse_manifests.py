"""Lhotse manifests: recordings with supervisions, or cuts, as .jsonl or .jsonl.gz.

Lhotse itself reads each line, so all versions of the format that it knows can be imported. It gets one line
at a time, because a malformed line would end its own iterators. It is never asked for audio, because it would
run commands or fetch URLs. One supervision is one utterance. `client_key` and `session_key` can be fields of
a supervision's `custom`. The end of a file name such as `x_recordings_dev.jsonl.gz` is the split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from antiphon.data.importing import candidates
from antiphon.data.importing.candidates import Candidate, ImportOptions, RefusedError, Skipped, convert_rows
from antiphon.data.importing.formats import FORMATS

T = TypeVar("T")
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
            supervisions = _supervisions(manifest)
            cuts = _cuts(manifest) if supervisions is None else _pairs(manifest, supervisions)
            make = partial(_candidates, manifest=manifest, options=options)
            yield from convert_rows(cuts, partial(_made, make), lambda cut: _id(cut.supervision))


def _manifests(source: Path) -> list[Path]:
    """Files of cuts, and files of recordings with a file of supervisions beside them."""
    paths = (
        [source] if source.is_file() else sorted(source.glob("*.jsonl")) + sorted(source.glob("*.jsonl.gz"))
    )
    rows = {path: candidates.first_row(path) for path in paths if NAME.fullmatch(path.name) or path == source}
    return [
        path
        for path, row in rows.items()
        if "supervisions" in row or "tracks" in row or ("sources" in row and _supervisions(path))
    ]


def _supervisions(recordings: Path) -> Path | None:
    """The file of supervisions beside a file of recordings; one of them may be compressed."""
    if "recordings" not in recordings.name:
        return None
    name = recordings.name.replace("recordings", "supervisions")
    other = name.removesuffix(".gz") if name.endswith(".gz") else f"{name}.gz"
    return next((path for path in map(recordings.with_name, (name, other)) if path.is_file()), None)


class Cut(NamedTuple):
    """A supervision with its recording; it starts at `start` + the start of the supervision."""

    recording: Any
    supervision: Any
    start: float


Cuts = Iterator[tuple[str, Cut] | Skipped]


def _id(item: Any) -> str:
    return str(item.get("id", "") if isinstance(item, dict) else getattr(item, "id", ""))


def _objects(path: Path) -> Iterator[tuple[str, Any] | Skipped]:
    try:
        from lhotse.serialization import deserialize_item
    except ImportError:
        raise ValueError("Lhotse manifests need Lhotse: pip install 'antiphon[lhotse]'") from None

    def read(where: str, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        try:
            yield where, deserialize_item(dict(fields))
        except Exception as error:  # Lhotse's constructors raise many kinds at unknown fields
            raise RefusedError(f"malformed manifest: Lhotse cannot read the line ({error!r})") from None

    return convert_rows(candidates.json_rows(path), read, _id)


def _pairs(recordings: Path, supervisions: Path) -> Cuts:
    recording_by_id = {}
    for row in _objects(recordings):
        if isinstance(row, Skipped):
            yield row
        elif hasattr(row[1], "sources"):
            recording_by_id[_id(row[1])] = row[1]

    def pair(where: str, supervision: Any) -> Iterator[tuple[str, Cut]]:
        recording = recording_by_id.get(str(getattr(supervision, "recording_id", None)))
        if recording is None:
            raise RefusedError("missing recording: no recording has the id it names")
        yield where, Cut(recording, supervision, 0.0)

    yield from convert_rows(_objects(supervisions), pair, _id)


def _cuts(path: Path) -> Cuts:
    def split(where: str, cut: Any) -> Iterator[tuple[str, Cut]]:
        if type(cut).__name__ not in ("MonoCut", "MultiCut") or cut.recording is None:
            raise RefusedError(f"unusable cut: a {type(cut).__name__} without one recording")
        if not cut.supervisions:
            raise RefusedError("no text: the cut has no supervision")
        yield from ((where, Cut(cut.recording, supervision, cut.start)) for supervision in cut.supervisions)

    return convert_rows(_objects(path), partial(_made, split), _id)


def _made(make: Callable[[str, Any], Iterator[T]], where: str, item: Any) -> Iterator[T]:
    """Yield what `make` makes of an object of Lhotse, which does not check the types of its fields."""
    try:
        yield from make(where, item)
    except (AttributeError, TypeError, LookupError) as error:
        raise RefusedError(f"malformed manifest: a field has another type ({error})") from None


def _candidates(where: str, cut: Cut, manifest: Path, options: ImportOptions) -> Iterator[Candidate]:
    recording, supervision, start = cut
    for transform in recording.to_dict().get("transforms") or ():
        # We resample ourselves; any other transform changes the speech.
        if transform["name"] != "Resample":
            raise RefusedError(
                f"transformed recording: {transform['name']} is not applied here, save the audio first"
            )
    custom: Mapping[str, Any] = supervision.custom or {}
    fields = {"language": supervision.language, "gender": supervision.gender, **custom}
    speaker = supervision.speaker if options.client_key == "speaker" else custom.get(options.client_key)
    if speaker is None:
        keys = ", ".join(["speaker", *sorted(custom)])
        raise RefusedError(
            f"no field {options.client_key!r}: the supervision does not name its client (it has {keys})"
        )
    source, channel = _source(recording, supervision.channel)
    if source.type != "file":
        raise RefusedError(f"not a file: sources of type {source.type!r} are not run or fetched")
    name = NAME.fullmatch(manifest.name)
    times = {"start": start, "start of the supervision": supervision.start, "duration": supervision.duration}
    begin, offset, duration = (candidates.take_number(times, key) or 0.0 for key in times)
    session = custom.get(options.session_key, speaker)
    texts = {"id": supervision.id, "speaker": speaker, "session": session, "text": supervision.text or ""}
    names: dict[str, Any] = {key: candidates.take_text(texts, key) for key in texts}
    yield Candidate(
        **names,
        split=name["split"] if name else None,
        audio=candidates.find_audio(str(source.source), manifest.parent, options),
        where=where,
        start=begin + offset,
        stop=begin + offset + duration,
        channel=channel,
        # Plain values, no arrays.
        extra={key: value for key, value in fields.items() if isinstance(value, str | int | float | bool)},
    )


def _source(recording: Any, channel: int | list[int]) -> tuple[Any, int | None]:
    """Return the source of a supervision, and the channel in it; several channels are averaged."""
    if isinstance(channel, int):
        for source in recording.sources:
            if channel in source.channels:
                return source, source.channels.index(channel)
    elif len(recording.sources) == 1:
        return recording.sources[0], None
    raise RefusedError(f"no such channel: {channel} is not in one source of recording {recording.id}")
