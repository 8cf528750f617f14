"""Which words session adaptation learnt: how many of those said were recognised, by where they are written.

    antiphon run session-adaptation --data SPOKEN --out out/0 --set seed=0 …       (and other seeds)
    python benchmarks/adaptation_words.py out/0 out/1 out/2 --corpus CORPUS --texts TEXTS

CORPUS has the real speech, TEXTS is the folder that benchmarks/adaptation.py writes. Words are known (of the
training transcripts), or new and in the text of their own session, else in the organisation's, else in none.
Counts are summed over seeds; docs/adaptation.md has the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from adaptation_texts import words_of
from common import argument_parser, print_table, write_result

from antiphon.data.corpus import Corpus
from antiphon.data.session_texts import TextRules, read_session_texts
from antiphon.records.reading import read_object
from antiphon.report.formatting import NONE
from antiphon.scoring.error_rate import Edit, alignment
from antiphon.scoring.trn import read_trn
from antiphon.workflows.adaptation_corpus import known_words

KNOWN, SESSION, ORGANISATION, NOWHERE = KINDS = (
    "known",
    "new, in their session's text",
    "new, in the organisation's",
    "new, in none",
)


def kinds(corpus: Corpus, texts: Path) -> Callable[[str, str], str]:
    """What kind of word one is, in an utterance."""
    rules = TextRules(corpus.alphabet)
    own = {text.name: words_of([text]) for text in read_session_texts([texts / "sessions"], rules)}
    everywhere = words_of(read_session_texts([texts / "organisation.txt"], rules))
    session = {utterance.id: utterance.session for utterance in corpus.utterances()}
    known = known_words(corpus)

    def kind(word: str, utterance: str) -> str:
        if word in known:
            return KNOWN
        if word in own.get(session[utterance], ()):
            return SESSION
        return ORGANISATION if word in everywhere else NOWHERE

    return kind


def recognised(run: Path, kind: Callable[[str, str], str]) -> tuple[Counter[str], Counter[str]]:
    """Words of a run's test speech by their kind: those that were recognised, and all that were said."""
    right: Counter[str] = Counter()
    said: Counter[str] = Counter()
    (folder,) = (run / "evaluation").glob("*/best")
    pairs = zip(read_trn(folder / "ref.trn"), read_trn(folder / "hyp.trn"), strict=True)
    for (reference, _, utterance), (hypothesis, _, _) in pairs:
        for edit, word, _ in alignment(reference.split(), hypothesis.split()):
            if word is not None:
                its_kind = kind(word, utterance)
                said[its_kind] += 1
                right[its_kind] += edit is Edit.MATCH
    return right, said


def share(counts: Sequence[int]) -> str:
    right, said = counts
    return f"{100 * right / said:.1f}" if said else NONE


def main() -> None:
    parser = argument_parser(__doc__, "adaptation_words")
    parser.add_argument("experiments", nargs="+", type=Path, help="folders that differ in their seed")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    args = parser.parse_args()
    kind = kinds(Corpus.open(args.corpus), args.texts)
    rows: dict[str, Mapping[str, list[int]]] = {}
    for name in read_object(args.experiments[0] / "experiment.json")["runs"]:
        right, said = Counter[str](), Counter[str]()
        for experiment in args.experiments:
            one_right, one_said = recognised(experiment / name, kind)
            right += one_right
            said += one_said
        rows[name] = {one: [right[one], said[one]] for one in KINDS}
    said_once = {one: count // len(args.experiments) for one, (_, count) in rows[name].items()}
    header = ["run", *(f"{one} ({count:,})" for one, count in said_once.items())]
    cells = [[name, *map(share, row.values())] for name, row in rows.items()]
    print_table(header, cells)
    write_result(args, {"recognised": rows}, "OUT...", "--corpus", "CORPUS", "--texts", "TEXTS")


if __name__ == "__main__":
    main()
