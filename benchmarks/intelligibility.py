"""Intelligibility of synthesisers: the word error rate of a recogniser that was trained on human speech.

    python benchmarks/intelligibility.py corpus

The same sentences of a corpus by every engine that is installed, each sentence in the next of some voices,
and by the people who read them for the corpus. The recogniser is Moonshine tiny, from the extra `[encoder]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from common import argument_parser, print_table, write_result

from antiphon.data.audio import SAMPLE_RATE, decode
from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.transcripts import written_form
from antiphon.data.tts.synthesiser import ENGINES, Mixing, Synthesiser, Voice, draw_voices
from antiphon.scoring.error_rate import Errors, word_errors
from antiphon.scoring.statistics import rate_interval
from antiphon.seeding import derive

WORDS = (8, 16)  # of a sentence
SPLIT = "test"


def draw_sentences(corpus: Corpus, num: int) -> list[Utterance]:
    """Draw utterances of the test split with a usual number of words."""
    low, high = WORDS
    usable = [u for u in corpus.utterances() if u.split == SPLIT and low <= len(u.text.split()) <= high]
    order = np.random.default_rng(derive(0, "sentences")).permutation(len(usable))
    return [usable[index] for index in order[:num]]


def load_recogniser() -> Callable[[np.ndarray], str]:
    """Return a function from samples at 16 kHz to their words, written like a transcript."""
    import moonshine_voice

    model = Path(moonshine_voice.__file__).parent / "assets" / "tiny-en"
    transcriber = moonshine_voice.Transcriber(str(model), moonshine_voice.ModelArch.TINY)

    def transcribe(samples: np.ndarray) -> str:
        lines = transcriber.transcribe_without_streaming(samples.tolist(), SAMPLE_RATE).lines
        return written_form(" ".join(line.text for line in lines))

    return transcribe


def score(
    sentences: list[Utterance], samples: Iterable[np.ndarray], transcribe: Callable[[np.ndarray], str]
) -> dict[str, Any]:
    """Return the errors in the words of the sentences, with an interval over sentences."""
    errors = [
        word_errors(sentence.text, transcribe(one)) for sentence, one in zip(sentences, samples, strict=True)
    ]
    total = sum(errors, Errors())
    interval = rate_interval([one.total for one in errors], [one.length for one in errors])
    assert interval is not None
    return {
        "words": total.length,
        "errors": [one.total for one in errors],
        "wer": {"estimate": total.rate, "low": interval.low, "high": interval.high},
    }


def measure(
    sentences: list[Utterance],
    engine: Synthesiser,
    voices: list[Voice],
    transcribe: Callable[[np.ndarray], str],
) -> dict[str, Any]:
    """Say every sentence in the next voice, and score it."""
    turns = zip(sentences, cycle(voices), strict=False)
    said = (engine.say(sentence.text, voice) for sentence, voice in turns)
    names = [voice.speaker for voice in voices]
    return {"version": engine.version, "voices": names, **score(sentences, said, transcribe)}


def rows(sentences: list[Utterance], corpus: Corpus, num_voices: int) -> dict[str, dict[str, Any]]:
    """Measure the recordings, every engine, and mixtures of its voices. A missing engine has its reason."""
    transcribe = load_recogniser()
    recordings = (decode(corpus.read_bytes(one))[0] for one in sentences)
    found: dict[str, dict[str, Any]] = {"recordings": score(sentences, recordings, transcribe)}
    for name in ENGINES:
        try:
            engine = ENGINES[name]()
        except ValueError as reason:
            found[name] = {"missing": str(reason)}
            continue
        voices = {name: list(draw_voices({name: engine}, num_voices, seed=0))}
        if isinstance(engine, Mixing):
            drawn = draw_voices({name: engine}, len(engine.voices) + num_voices, seed=0)
            voices[f"{name}, mixtures"] = list(drawn[len(engine.voices) :])
        for row, chosen in voices.items():
            found[row] = measure(sentences, engine, chosen, transcribe)
            print(f"{row}: {100 * found[row]['wer']['estimate']:.1f} %", flush=True)
    return found


def main() -> None:
    parser = argument_parser(__doc__, "intelligibility")
    parser.add_argument("corpus", type=Path, help="a corpus of read speech with a test split")
    parser.add_argument("--sentences", type=int, default=40)
    parser.add_argument("--voices", type=int, default=8)
    arguments = parser.parse_args()
    corpus = Corpus.open(arguments.corpus)
    sentences = draw_sentences(corpus, 3 if arguments.quick else arguments.sentences)
    found = rows(sentences, corpus, 2 if arguments.quick else arguments.voices)
    table = []
    for name, row in found.items():
        if "wer" not in row:
            table.append((name, "missing"))
            continue
        wer = row["wer"]
        interval = f"{100 * wer['estimate']:.1f} [{100 * wer['low']:.1f}, {100 * wer['high']:.1f}]"
        table.append((name, interval))
    print_table(("engine", "WER %"), table)
    result = {"sentences": [one.id for one in sentences], "rows": found, "seeds": [0]}
    write_result(arguments, result, str(arguments.corpus))


if __name__ == "__main__":
    main()
