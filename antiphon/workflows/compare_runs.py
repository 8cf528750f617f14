"""Compare two runs, and list the errors of one word for word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.experiment.score import Tally, write_json
from antiphon.scoring.alignment import Confusions, find_confusions, format_alignments, format_confusions
from antiphon.scoring.normalisation import Normalisation
from antiphon.workflows.comparison import Comparison, read_transcripts, shared_normalisation
from antiphon.workflows.comparison import compare as compare_transcripts


def compare(
    first: str | Path,
    second: str | Path,
    *,
    reference: str | Path | None = None,
    split: str = "test",
    which: str = "best",
    normalise: Sequence[str] = (),
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
            collapse_spaces. By default those that both were scored with.
        out: A JSON file for everything.

    Example:
        print(antiphon.compare("out/seed", "out/dga").verdict)
    """
    one, other = (
        read_transcripts(Path(source), split, which, _path(reference)) for source in (first, second)
    )
    steps = Normalisation.of(normalise) if normalise else shared_normalisation(one, other)
    comparison = compare_transcripts(one, other, steps)
    if out is not None:
        write_json(Path(out), comparison.to_json())
    return comparison


@dataclass(frozen=True)
class ErrorLists:
    """Errors by speaker, confused words, and the folder with alignments.txt and confusions.txt."""

    folder: Path
    normalisation: Normalisation
    speakers: Mapping[str, Tally]
    confusions: Confusions


def alignments(
    source: str | Path,
    *,
    reference: str | Path | None = None,
    split: str = "test",
    which: str = "best",
    normalise: Sequence[str] = (),
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
            collapse_spaces. By default those that the transcripts were scored with.
        out: The folder for the two files; by default the folder of the hypothesis.

    Example:
        errors = antiphon.alignments("out/dga")
        print(errors.confusions.substitutions.most_common(3))
    """
    transcripts = read_transcripts(Path(source), split, which, _path(reference))
    steps = Normalisation.of(normalise) if normalise else transcripts.normalisation or Normalisation()
    normalised = transcripts.normalised(steps)
    utterances = normalised.aligned()
    confusions = find_confusions(utterances)
    folder = Path(out) if out is not None else transcripts.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "alignments.txt").write_text(format_alignments(str(source), utterances), encoding="utf-8")
    (folder / "confusions.txt").write_text(format_confusions(confusions), encoding="utf-8")
    return ErrorLists(folder, steps, normalised.by_speaker(), confusions)


def _path(path: str | Path | None) -> Path | None:
    return Path(path) if path is not None else None
