"""Two recognisers on the same utterances: error rates, and whether their difference is real."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from antiphon.scoring.alignment import Aligned, align_words
from antiphon.scoring.error_rate import Tally
from antiphon.scoring.normalisation import Normalisation
from antiphon.scoring.segments import error_segments
from antiphon.scoring.significance import (
    MatchedPairs,
    PairedBootstrap,
    conclusion,
    matched_pairs,
    paired_bootstrap,
    segments_verdict,
    speakers_verdict,
)
from antiphon.scoring.trn import read_trn

FORMAT = "antiphon-comparison/1"
Key = tuple[str, str]  # speaker, utterance


@dataclass(frozen=True)
class Transcripts:
    """What one recogniser heard. `normalisation`: what it was scored after, None where nobody says."""

    source: Path  # as it was named
    folder: Path  # of the hypothesis
    rows: Mapping[Key, tuple[str, str]]  # reference, hypothesis: as they are
    normalisation: Normalisation | None

    def normalised(self, normalisation: Normalisation) -> Transcripts:
        rows = {key: (normalisation(said), normalisation(heard)) for key, (said, heard) in self.rows.items()}
        return replace(self, rows=rows, normalisation=normalisation)

    def part(self, keys: Iterable[Key]) -> Transcripts:
        return replace(self, rows={key: self.rows[key] for key in keys})

    def aligned(self) -> list[Aligned]:
        return [align_words(*key, *texts) for key, texts in self.rows.items()]

    def by_speaker(self) -> dict[str, Tally]:
        tallies: dict[str, Tally] = defaultdict(Tally)
        for (speaker, _), texts in self.rows.items():
            tallies[speaker] += Tally.of(*texts)
        return dict(sorted(tallies.items()))


@dataclass(frozen=True)
class Comparison:
    """`left_out`: utterances that only the first has, and only the second."""

    names: tuple[str, str]
    normalisation: Normalisation
    totals: tuple[Tally, Tally]
    left_out: tuple[int, int]
    segments: MatchedPairs
    speakers: PairedBootstrap

    @property
    def verdict(self) -> str:
        return conclusion(self.segments, self.speakers, self.names)

    def to_json(self) -> dict[str, Any]:
        names, segments, speakers = self.names, self.segments, self.speakers
        return {
            "format": FORMAT,
            "runs": [
                {"name": name, **asdict(total), "left_out": left_out}
                for name, total, left_out in zip(names, self.totals, self.left_out, strict=True)
            ],
            "normalisation": asdict(self.normalisation),
            "matched_pairs": {**asdict(segments), "verdict": segments_verdict(segments, names)},
            "bootstrap": {**asdict(speakers), "verdict": speakers_verdict(speakers, names)},
            "verdict": self.verdict,
        }


def read_transcripts(source: Path, split: str, which: str, reference: Path | None = None) -> Transcripts:
    """Of a run folder, of an evaluation folder, or of a .trn file with its reference beside it or given."""
    hypothesis = source if source.is_file() else source / "hyp.trn"
    if (source / "evaluation").is_dir():
        hypothesis = source / "evaluation" / split / which / "hyp.trn"
    reference = reference or hypothesis.parent / "ref.trn"
    if not hypothesis.is_file():
        raise ValueError(f"{source} is no run, evaluation folder or .trn file: there is no {hypothesis}")
    if not reference.is_file():
        raise ValueError(f"{hypothesis} needs its reference: there is no {reference}, name one with --ref")
    said, heard = _read(reference), _read(hypothesis)
    for speaker, utterance in heard.keys() - said.keys():
        raise ValueError(f"{hypothesis}: utterance {utterance!r} of {speaker!r} is not in {reference}")
    scores = hypothesis.parent / "scores.json"
    recorded = Normalisation.recorded(json.loads(scores.read_text())) if scores.is_file() else None
    rows = {key: (said[key], heard[key]) for key in sorted(heard)}
    return Transcripts(source, hypothesis.parent, rows, recorded)


def _read(path: Path) -> dict[Key, str]:
    texts: dict[Key, str] = {}
    for text, speaker, utterance in read_trn(path):
        if (speaker, utterance) in texts:
            raise ValueError(f"{path}: utterance {utterance!r} of {speaker!r} is there twice")
        texts[speaker, utterance] = text
    return texts


def shared_normalisation(first: Transcripts, second: Transcripts) -> Normalisation:
    """What both were scored after; where one does not say, as the other."""
    one, other = first.normalisation, second.normalisation
    if one is not None and other is not None and one != other:
        raise ValueError(
            f"scored after different normalisation: {first.source} {one}, {second.source} {other}; "
            "name the steps for both with --normalise"
        )
    return one or other or Normalisation()


def compare(first: Transcripts, second: Transcripts, normalisation: Normalisation) -> Comparison:
    """Both on the utterances they share, which must have the same references."""
    shared = [key for key in first.rows if key in second.rows]
    if not shared:
        raise ValueError(f"{first.source} and {second.source} have no utterance in common")
    left_out = (len(first.rows) - len(shared), len(second.rows) - len(shared))
    one, other = (each.part(shared).normalised(normalisation) for each in (first, second))
    for key in shared:
        if one.rows[key][0].split() != other.rows[key][0].split():
            raise ValueError(
                f"utterance {key[1]!r} of speaker {key[0]!r} has another reference in {second.source} than "
                f"in {first.source}: only the same words can be compared"
            )
    segments = [
        segment
        for left, right in zip(one.aligned(), other.aligned(), strict=True)
        for segment in error_segments(left.rows, right.rows)
    ]
    tallies = [each.by_speaker() for each in (one, other)]
    wrong, others = ([tally.words.total for tally in own.values()] for own in tallies)
    lengths = [tally.words.length for tally in tallies[0].values()]
    return Comparison(
        _names(first.source, second.source),
        normalisation,
        (sum(tallies[0].values(), Tally()), sum(tallies[1].values(), Tally())),
        left_out,
        matched_pairs([errors for errors, _ in segments], [errors for _, errors in segments]),
        paired_bootstrap(wrong, others, lengths),
    )


def _names(first: Path, second: Path) -> tuple[str, str]:
    """The last parts of two paths, as many as tell them apart; an evaluation goes by the name of its run."""
    one, other = _run_of(first.resolve()), _run_of(second.resolve())
    if one == other:
        one, other = first.resolve(), second.resolve()
    for number in range(1, max(len(one.parts), len(other.parts))):
        if one.parts[-number:] != other.parts[-number:]:
            return "/".join(one.parts[-number:]), "/".join(other.parts[-number:])
    return str(first), str(second)


def _run_of(path: Path) -> Path:
    return path.parents[2] if path.parts[-3:-2] == ("evaluation",) else path
