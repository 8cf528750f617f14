"""Compare two recognisers on the same utterances, and list the errors of one word for word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from antiphon.records.files import make_folder, write_json, write_text
from antiphon.records.folders import check_new_file, check_new_folder
from antiphon.records.reading import read_as
from antiphon.scoring.alignment import (
    AlignedUtterance,
    Confusions,
    align_words,
    find_confusions,
    format_alignments,
    format_confusions,
)
from antiphon.scoring.error_rate import Tally
from antiphon.scoring.normalisation import Normalisation
from antiphon.scoring.significance import (
    MatchedPairs,
    PairedBootstrap,
    conclusion,
    error_segments,
    matched_pairs,
    paired_bootstrap,
    segments_verdict,
    speakers_verdict,
)
from antiphon.scoring.trn import read_trn
from antiphon.workflows.arguments import Names

FORMAT = "antiphon-comparison/1"
Key = tuple[str, str]  # speaker, utterance


@dataclass(frozen=True)
class ScoredTexts:
    """What scores.json says about the texts; older files name no normalisation and had none."""

    advice: ClassVar = "Score the model again with antiphon evaluate"
    normalisation: Normalisation = Normalisation()


@dataclass(frozen=True)
class Transcripts:
    """The transcripts of one recogniser, with their references.

    source: the path that the user gave. folder: the folder of the hypothesis file.
    rows: (reference, hypothesis) as they are in the files.
    normalisation: the steps that were taken before scoring; None if scores.json does not record them.
    """

    source: Path
    folder: Path
    rows: Mapping[Key, tuple[str, str]]
    normalisation: Normalisation | None

    def normalised(self, normalisation: Normalisation) -> Transcripts:
        rows = {key: (normalisation(said), normalisation(heard)) for key, (said, heard) in self.rows.items()}
        return replace(self, rows=rows, normalisation=normalisation)

    def part(self, keys: Iterable[Key]) -> Transcripts:
        return replace(self, rows={key: self.rows[key] for key in keys})

    def aligned(self) -> list[AlignedUtterance]:
        return [align_words(*key, *texts) for key, texts in self.rows.items()]

    def by_speaker(self) -> dict[str, Tally]:
        tallies: dict[str, Tally] = defaultdict(Tally)
        for (speaker, _), texts in self.rows.items():
            tallies[speaker] += Tally.of(*texts)
        return dict(sorted(tallies.items()))


@dataclass(frozen=True)
class Comparison:
    """Errors of two recognisers, and tests of their difference.

    left_out: the number of utterances that only the first has, and that only the second has.
    """

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


@dataclass(frozen=True)
class ErrorLists:
    """Errors by speaker, confused words, and the folder with alignments.txt and confusions.txt."""

    folder: Path
    normalisation: Normalisation
    speakers: Mapping[str, Tally]
    confusions: Confusions


def compare(
    first: str | Path,
    second: str | Path,
    *,
    reference: str | Path | None = None,
    split: str = "test",
    which: str = "best",
    normalise: Names = (),
    out: str | Path | None = None,
) -> Comparison:
    """Compare the transcripts of two recognisers: matched pairs, and a bootstrap over speakers.

    Args:
        first: A run, an evaluation folder, or a .trn file.
        second: The same for the other recogniser.
        reference: The reference transcripts; by default the ref.trn beside each hypothesis.
        split: The split whose evaluation is read from a run.
        which: The model whose evaluation is read from a run: best or start.
        normalise: Steps to take before errors are counted: nfc, lower_case, strip_punctuation,
            collapse_spaces. By default the steps that both were scored with.
        out: A JSON file for all results.

    Example:
        print(antiphon.compare("out/seed", "out/dga").verdict)
    """
    if out is not None:
        check_new_file(Path(out))
    one, other = (read_transcripts(source, split, which, reference) for source in (first, second))
    steps = Normalisation.of(normalise) if normalise else shared_normalisation(one, other)
    comparison = compare_transcripts(one, other, steps)
    if out is not None:
        write_json(Path(out), comparison.to_json())
    return comparison


def alignments(
    source: str | Path,
    *,
    reference: str | Path | None = None,
    split: str = "test",
    which: str = "best",
    normalise: Names = (),
    out: str | Path | None = None,
) -> ErrorLists:
    """Align every utterance word for word, and count which words are confused.

    Writes alignments.txt and confusions.txt.

    Args:
        source: A run, an evaluation folder, or a .trn file.
        reference: The reference transcripts; by default the ref.trn beside the hypothesis.
        split: The split whose evaluation is read from a run.
        which: The model whose evaluation is read from a run: best or start.
        normalise: Steps to take before errors are counted: nfc, lower_case, strip_punctuation,
            collapse_spaces. By default the steps that the transcripts were scored with.
        out: The folder for the two files; by default the folder of the hypothesis.

    Example:
        errors = antiphon.alignments("out/dga")
        print(errors.confusions.substitutions.most_common(3))
    """
    transcripts = read_transcripts(source, split, which, reference)
    steps = Normalisation.of(normalise) if normalise else transcripts.normalisation or Normalisation()
    normalised = transcripts.normalised(steps)
    utterances = normalised.aligned()
    confusions = find_confusions(utterances)
    folder = Path(out) if out is not None else transcripts.folder
    check_new_folder(folder)
    make_folder(folder)
    write_text(folder / "alignments.txt", format_alignments(str(source), utterances), is_private=True)
    write_text(folder / "confusions.txt", format_confusions(confusions), is_private=True)
    return ErrorLists(folder, steps, normalised.by_speaker(), confusions)


def read_transcripts(
    source: str | Path, split: str, which: str, reference: str | Path | None = None
) -> Transcripts:
    """Read the transcripts of a run folder, of an evaluation folder, or of a .trn file."""
    source = Path(source)
    hypothesis = source if source.is_file() else source / "hyp.trn"
    if (source / "evaluation").is_dir():
        hypothesis = source / "evaluation" / split / which / "hyp.trn"
    reference = Path(reference) if reference is not None else hypothesis.parent / "ref.trn"
    if not hypothesis.is_file():
        raise ValueError(f"{source} is no run, evaluation folder or .trn file: there is no {hypothesis}")
    if not reference.is_file():
        raise ValueError(
            f"{hypothesis} needs a reference: there is no {reference}, name one with --ref "
            "(in Python: reference=)"
        )
    said, heard = _read(reference), _read(hypothesis)
    for speaker, utterance in heard.keys() - said.keys():
        raise ValueError(f"{hypothesis}: utterance {utterance!r} of {speaker!r} is not in {reference}")
    scores = hypothesis.parent / "scores.json"
    recorded = read_as(ScoredTexts, scores).normalisation if scores.is_file() else None
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
    """Return the normalisation that both were scored with; if only one records it, that one's."""
    one, other = first.normalisation, second.normalisation
    if one is not None and other is not None and one != other:
        raise ValueError(
            f"scored after different normalisation: {first.source} {one}, {second.source} {other}; "
            "name the steps for both with --normalise (in Python: normalise=)"
        )
    return one or other or Normalisation()


def compare_transcripts(first: Transcripts, second: Transcripts, normalisation: Normalisation) -> Comparison:
    """Compare both on the utterances that they share, which must have the same references."""
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
    tallies = one.by_speaker(), other.by_speaker()
    wrong, others = ([tally.words.total for tally in by_speaker.values()] for by_speaker in tallies)
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
    """Return the last parts of two paths, as many as differ; an evaluation has the name of its run."""
    one, other = _run_of(first.resolve()), _run_of(second.resolve())
    if one == other:
        one, other = first.resolve(), second.resolve()
    for number in range(1, max(len(one.parts), len(other.parts))):
        if one.parts[-number:] != other.parts[-number:]:
            return "/".join(one.parts[-number:]), "/".join(other.parts[-number:])
    return str(first), str(second)


def _run_of(path: Path) -> Path:
    return path.parents[2] if path.parts[-3:-2] == ("evaluation",) else path
