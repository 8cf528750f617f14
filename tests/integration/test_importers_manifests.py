"""NeMo and Lhotse manifests, written by hand or by Lhotse itself, imported and read back."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sources import imported, ramp, reasons, samples

soundfile = pytest.importorskip("soundfile")


# --- NeMo -----------------------------------------------------------------------------------------


@pytest.fixture
def nemo(tmp_path: Path) -> Path:
    folder = tmp_path / "nemo"
    folder.mkdir()
    soundfile.write(folder / "a.wav", ramp(2.0), 16000)
    rows: list[dict[str, Any]] = [
        {"audio_filepath": "a.wav", "duration": 2.0, "text": "all", "caller": 7, "lang": "en"},
        {
            "audio_filepath": str(folder / "a.wav"),
            "offset": 0.5,
            "duration": 0.25,
            "text": "part",
            "caller": "x",
        },
    ]
    (folder / "train.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_nemo_manifest_with_parts_and_its_own_name_for_the_client(nemo: Path) -> None:
    summary, corpus, utterances = imported(nemo / "train.json", client_key="caller", split="test")
    assert (summary.format, summary.num_copied) == ("nemo", 1)
    whole = utterances["a"]
    assert (whole.speaker, whole.split, whole.text, whole.extra) == ("7", "test", "all", {"lang": "en"})
    (part,) = (u for name, u in utterances.items() if name.endswith("nemo-a-500"))
    assert part.speaker == "x"
    np.testing.assert_array_equal(samples(corpus, part), ramp(0.25, 8000))


def test_nemo_without_the_client_key_lists_the_keys_there_are(nemo: Path) -> None:
    keys = "audio_filepath, caller, duration, lang, text"
    message = rf"train.json:1 has no field 'speaker'.*client_key \(--client-key\) to one of {keys}"
    with pytest.raises(ValueError, match=message):
        imported(nemo)


def test_nemo_folder_with_several_manifests_asks_for_one(nemo: Path) -> None:
    (nemo / "dev.json").write_text((nemo / "train.json").read_text())
    with pytest.raises(ValueError, match=r"import one of dev.json, train.json"):
        imported(nemo, client_key="caller")


def test_nemo_faults_are_skipped(nemo: Path) -> None:
    with open(nemo / "train.json", "a") as file:
        for row in (
            {"audio_filepath": "a.wav", "offset": 1.5, "duration": 9, "text": "x", "caller": "x"},
            {"id": "far", "audio_filepath": "/etc/passwd", "duration": 1, "text": "x", "caller": "x"},
            {"id": "short", "audio_filepath": "a.wav", "duration": 4, "text": "x", "caller": "x"},
            {"id": "odd", "audio_filepath": "a.wav", "duration": "4", "text": "x", "caller": "x"},
            {"audio_filepath": "n.wav", "offset": float("nan"), "duration": 1, "text": "x", "caller": "x"},
            {"audio_filepath": "i.wav", "offset": float("inf"), "duration": 1, "text": "x", "caller": "x"},
            {"audio_filepath": "d.wav", "offset": 10**400, "duration": 1, "text": "x", "caller": "x"},
            {"audio_filepath": "a.wav", "offset": 1e308, "duration": 1e308, "text": "x", "caller": "x"},
            {"text": "x", "caller": "x"},
        ):
            file.write(json.dumps(row) + "\n")
    assert reasons(imported(nemo, client_key="caller")[0]) == {
        "a-1500": "segment out of range",
        "far": "path outside the source folder",
        "short": "duration mismatch",
        "odd": "bad number",
        "n": "bad number",
        "i": "bad number",
        "d": "bad number",
        "a-inf": "segment out of range",
        "": "no field 'audio_filepath'",
    }


# --- Lhotse ---------------------------------------------------------------------------------------


@pytest.fixture
def lhotse_set(tmp_path: Path) -> tuple[Path, Any, Any]:
    lhotse = pytest.importorskip("lhotse", reason="Lhotse is not installed")
    folder = tmp_path / "lhotse"
    folder.mkdir()
    soundfile.write(folder / "mono.wav", ramp(2.0), 16000)
    soundfile.write(folder / "two.flac", np.stack([ramp(2.0), ramp(2.0, 99)], axis=1), 16000)
    recordings = lhotse.RecordingSet.from_recordings(
        lhotse.Recording.from_file(folder / name) for name in ("mono.wav", "two.flac")
    )
    segment = lhotse.SupervisionSegment
    supervisions = lhotse.SupervisionSet.from_segments(
        [
            segment("m", "mono", 0, 2.0, text="Whole", speaker="ann", gender="f", custom={"room": "r1"}),
            segment("t", "two", 0.5, 1.0, channel=1, text="second", speaker="bob", custom={"room": "r2"}),
        ]
    )
    return folder, recordings, supervisions


def check_lhotse(source: Path, split: str) -> None:
    summary, corpus, utterances = imported(source, session_key="room")
    assert (summary.format, summary.skipped, summary.num_copied) == ("lhotse", (), 1)
    one, two = utterances["m"], utterances["t"]
    assert (one.speaker, one.session, one.split, one.text) == ("ann", "r1", split, "whole")
    assert one.extra["gender"] == "f"
    assert corpus.read_bytes(one) == (source / "mono.wav").read_bytes()
    np.testing.assert_array_equal(samples(corpus, two), ramp(1.0, 8099))


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
@pytest.mark.parametrize("other", ["jsonl", "jsonl.gz"])
def test_lhotse_recordings_and_supervisions(
    lhotse_set: tuple[Path, Any, Any], ending: str, other: str
) -> None:
    folder, recordings, supervisions = lhotse_set
    recordings.to_file(folder / f"x_recordings_dev.{ending}")
    supervisions.to_file(folder / f"x_supervisions_dev.{other}")
    check_lhotse(folder, "dev")


def test_lhotse_cuts_whole_and_trimmed(lhotse_set: tuple[Path, Any, Any]) -> None:
    lhotse = pytest.importorskip("lhotse")
    folder, recordings, supervisions = lhotse_set
    cuts = lhotse.CutSet.from_manifests(recordings=recordings, supervisions=supervisions)
    for each in (cuts, cuts.trim_to_supervisions(), cuts.resample(8000)):
        each.to_file(folder / "cuts.jsonl.gz")
        check_lhotse(folder, "pool")


def test_lhotse_faults_are_skipped_and_nothing_is_run(lhotse_set: tuple[Path, Any, Any]) -> None:
    lhotse = pytest.importorskip("lhotse")
    folder, recordings, supervisions = lhotse_set
    cuts = lhotse.CutSet.from_manifests(recordings=recordings, supervisions=supervisions)
    cuts.to_file(folder / "cuts.jsonl")
    good, other = (folder / "cuts.jsonl").read_text().splitlines()
    padded, faster = cuts.subset(first=1).pad(9), cuts.subset(first=1).perturb_speed(1.1)
    padded.to_file(folder / "padded.jsonl")
    faster.to_file(folder / "faster.jsonl")
    command = json.loads(other)
    command["recording"]["sources"][0].update(type="command", source=f"touch {folder}/ran")
    silent = json.loads(other)
    silent["supervisions"][0].update(id="silent", speaker=None)
    odd = json.loads(other) | {"id": "odd", "channel": 5, "unknown_field": 1, "type": "NewCut"}
    lines = [good, *map(json.dumps, (command, silent, odd)), "{", "{}"]
    lines += [(folder / name).read_text().strip() for name in ("padded.jsonl", "faster.jsonl")]
    (folder / "cuts.jsonl").write_text("\n".join(lines))
    summary, _, utterances = imported(folder / "cuts.jsonl")
    assert list(utterances) == ["m"]
    assert not (folder / "ran").exists()
    assert sorted(one.kind for one in summary.skipped) == [
        "malformed JSON",
        "malformed manifest",
        "malformed manifest",
        "no field 'speaker'",
        "not a file",
        "transformed recording",
        "unusable cut",
    ]


WRONG: list[Any] = [None, True, 3, 10**400, float("nan"), "text", ["text"], {"a": 1}, [], {}, -1.5, "\ud800"]


def test_lhotse_fields_of_any_type_are_taken_or_skipped(lhotse_set: tuple[Path, Any, Any]) -> None:
    lhotse = pytest.importorskip("lhotse")
    folder, recordings, supervisions = lhotse_set
    cuts = lhotse.CutSet.from_manifests(recordings=recordings, supervisions=supervisions)
    cuts.to_file(folder / "cuts.jsonl")
    good, other = (folder / "cuts.jsonl").read_text().splitlines()
    lines = [good]
    parts: list[tuple[str | int, ...]] = [
        (), ("recording",), ("recording", "sources", 0), ("supervisions", 0), ("supervisions", 0, "custom"),
    ]  # fmt: skip
    for part in parts:
        for wrong in WRONG:
            cut = json.loads(other)
            fields = cut
            for key in part:
                fields = fields[key]
            for key in fields:
                before, fields[key] = fields[key], wrong
                lines.append(json.dumps(cut))
                fields[key] = before
    (folder / "cuts.jsonl").write_text("\n".join(lines))
    summary, _, utterances = imported(folder / "cuts.jsonl")
    assert "m" in utterances
    assert summary.num_utterances + len(summary.skipped) == len(lines)
    assert summary.num_skipped_by_kind["malformed manifest"] > 50


def test_lhotse_archive_that_is_cut_off_gives_what_can_be_read(lhotse_set: tuple[Path, Any, Any]) -> None:
    folder, recordings, supervisions = lhotse_set
    recordings.to_file(folder / "recordings.jsonl")
    supervisions.to_file(folder / "supervisions.jsonl")
    lines = (folder / "supervisions.jsonl").read_bytes() * 3000
    os.remove(folder / "supervisions.jsonl")
    os.rename(folder / "recordings.jsonl", folder / "recordings.jsonl.tmp")
    (folder / "recordings.jsonl.gz").write_bytes(
        gzip.compress((folder / "recordings.jsonl.tmp").read_bytes())
    )
    (folder / "supervisions.jsonl.gz").write_bytes(gzip.compress(lines)[:-100])
    summary, _, utterances = imported(folder)
    assert sorted(utterances) == ["m", "t"]
    assert summary.num_skipped_by_kind.keys() == {"duplicate id", "damaged file"}
