"""Text to token ids and back: characters, SentencePiece unigram pieces, or whole words (language models).

Id 0 is the boundary (the CTC blank; the start and end of an attention decoder), id 1 the unknown
token. Text is taken as it is: words separated by single spaces, none at either end.

>>> tokens = CharactersConfig().fit(["go on"], alphabet=None)
>>> tokens.encode("no")
[4, 5]
>>> tokens.decode([0, 4, 5, 0, 1])
'no⁇'
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

from antiphon.records.files import ADVICE, Damaged, read_whole, write_json
from antiphon.records.reading import fields_of, read_as, read_object
from antiphon.registry import Registry

BOUNDARY = 0
UNKNOWN = 1
UNKNOWN_TEXT = "⁇"
FORMAT = "antiphon-tokens/1"
WORDS_FORMAT = "antiphon-words/1"
WORDS_FILE = "words.json"


class Tokens(Protocol):
    """Text as ids 0 … size - 1. `encode` never returns 0; `decode` omits 0 and writes 1 as ⁇."""

    @property
    def size(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def save(self, folder: str | Path) -> None: ...


class TokensConfig(Protocol):
    """A frozen dataclass of settings. It makes tokens, and loads saved tokens of its kind."""

    def fit(self, texts: Iterable[str], alphabet: str | None) -> Tokens: ...
    @staticmethod
    def load(folder: Path, about: Mapping[str, Any]) -> Tokens:
        """Load what `Tokens.save` wrote: `about` is tokens.json, whose "kind" is this class's name."""
        ...


HOMES = ["antiphon.data.tokens", "antiphon.data.huggingface_folder"]
TOKENS = Registry("antiphon.tokens", kind=TokensConfig, homes=HOMES, default="characters")
OLD_KINDS = {"hugging_face": "hugging_face_tokens"}  # name in tokens.json -> name today


@dataclass(frozen=True)
class Characters:
    """One token per character: id 2 is the first of `characters`."""

    characters: str

    @property
    def size(self) -> int:
        return 2 + len(self.characters)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {character: id for id, character in enumerate(self.characters, 2)}

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(character, UNKNOWN) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(UNKNOWN_TEXT if id == UNKNOWN else self.characters[id - 2] for id in ids if id != 0)

    def save(self, folder: str | Path) -> None:
        write_tokens(Path(folder), {"kind": "characters", "characters": self.characters})


@dataclass(frozen=True)
class Unigram:
    """SentencePiece unigram pieces; `model` is the content of a SentencePiece model file."""

    model: bytes

    @cached_property
    def _processor(self) -> Any:
        from sentencepiece import SentencePieceProcessor

        return SentencePieceProcessor(model_proto=self.model)

    def __reduce__(self) -> tuple[Any, ...]:
        return Unigram, (self.model,)  # another process gets the model, not the processor

    @property
    def size(self) -> int:
        return self._processor.get_piece_size()

    @property
    def pieces(self) -> list[str]:
        """The pieces in the order of their ids; "▁" is a space."""
        return [self._processor.id_to_piece(id) for id in range(self.size)]

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode([int(id) for id in ids if id != BOUNDARY])

    def save(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "unigram.model").write_bytes(self.model)
        write_tokens(Path(folder), {"kind": "unigram"}, files=["unigram.model"])


@dataclass(frozen=True)
class Words:
    """One token per word: id 2 is the first of the vocabulary.

    >>> Words(("go", "on")).encode("go on now")
    [2, 3, 1]
    """

    vocabulary: tuple[str, ...]

    @property
    def size(self) -> int:
        return 2 + len(self.vocabulary)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: id for id, word in enumerate(self.vocabulary, 2)}

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, UNKNOWN) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(UNKNOWN_TEXT if id == UNKNOWN else self.vocabulary[id - 2] for id in ids if id != 0)

    def save(self, folder: str | Path) -> None:
        write_tokens(Path(folder), {"words": self.vocabulary}, WORDS_FILE, WORDS_FORMAT)


@TOKENS.register
@dataclass(frozen=True)
class CharactersConfig:
    """The characters of the alphabet and the space; without an alphabet, the characters of the texts."""

    def fit(self, texts: Iterable[str], alphabet: str | None) -> Characters:
        characters = set(alphabet) if alphabet is not None else {c for text in texts for c in text}
        if not characters:
            raise ValueError("no characters to make tokens of: the alphabet or the texts are empty")
        return Characters("".join(sorted(characters | {" "})))

    @staticmethod
    def load(folder: Path, about: Mapping[str, Any]) -> Characters:
        return fields_of(Characters, about, str(folder / "tokens.json"))


@TOKENS.register
@dataclass(frozen=True)
class UnigramConfig:
    """`size` tokens, boundary and unknown included, learnt from texts that the server may read.

    All characters of the alphabet are pieces, even if the texts do not have them.
    """

    size: int = 256

    def fit(self, texts: Iterable[str], alphabet: str | None) -> Unigram:
        from sentencepiece import SentencePieceTrainer

        texts = [text for text in texts if text]
        if not texts:
            raise ValueError("unigram tokens are learnt from text, but no text was given: use characters")
        model = io.BytesIO()
        try:
            SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_writer=model,
                model_type="unigram",
                vocab_size=self.size,
                required_chars="".join(sorted(set(alphabet or "") - {" "})),
                pad_id=BOUNDARY,
                unk_id=UNKNOWN,
                bos_id=-1,
                eos_id=-1,
                unk_surface=UNKNOWN_TEXT,
                character_coverage=1.0,
                normalization_rule_name="identity",
                max_sentence_length=1 << 20,  # the default silently skips longer ones
                num_threads=1,  # several threads add up in a random order
                minloglevel=3,
            )
        except RuntimeError as error:
            raise ValueError(_advice(self.size, str(error))) from error
        return Unigram(model.getvalue())

    @staticmethod
    def load(folder: Path, about: Mapping[str, Any]) -> Unigram:
        path = folder / "unigram.model"
        try:
            tokens = Unigram(read_whole(path))
            assert tokens.size
        except (OSError, RuntimeError) as error:
            raise Damaged(f"{path} cannot be read ({error}). {ADVICE}") from None
        return tokens


@dataclass(frozen=True)
class WordsConfig:
    """The most frequent words of the texts: at most `size` tokens, boundary and unknown included."""

    size: int = 20_000

    def fit(self, texts: Iterable[str], alphabet: str | None) -> Words:
        counts = Counter(word for text in texts for word in text.split())
        if not counts:
            raise ValueError("no words to make tokens of: the texts are empty")
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        return Words(tuple(ordered[: self.size - 2]))


@TOKENS.register
@dataclass(frozen=True)
class SavedTokensConfig:
    """The tokens of a saved model; its output layer needs exactly these."""

    folder: str  # of a run or of a model

    def fit(self, texts: Iterable[str], alphabet: str | None) -> Tokens:
        folder = Path(self.folder)
        return load_tokens(folder / "model" if (folder / "model" / "tokens.json").exists() else folder)

    @staticmethod
    def load(folder: Path, about: Mapping[str, Any]) -> Tokens:
        raise ValueError(f"{folder}: tokens are saved under the name of their own kind")


def _advice(size: int, message: str) -> str:
    """Say what to do about an error of SentencePiece, which is nearly always about the size."""
    if match := re.search(r"<= (\d+)", message):
        return f"the texts have too few different pieces for size={size}: choose at most {match[1]}"
    if match := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return f"size={size} is too small for the characters of the texts: choose at least {match[1]}"
    return f"SentencePiece cannot learn size={size} tokens from these texts: {message}"


def write_tokens(
    folder: Path,
    about: dict[str, Any],
    file: str = "tokens.json",
    format: str = FORMAT,
    files: Iterable[str] = (),
) -> None:
    """Write what is needed to load the tokens again: their kind, and the data of that kind.

    files: the names of other files that the tokens need, which are written already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / file, {"format": format, **about}, files, indent=None)


def load_tokens(folder: str | Path) -> Tokens:
    """Load the tokens saved in `folder`."""
    folder = Path(folder)
    about = read_object(folder / "tokens.json", FORMAT, "tokens")
    kind = str(about.get("kind"))
    kind = OLD_KINDS.get(kind, kind)
    if kind not in TOKENS:
        raise ValueError(f"{folder / 'tokens.json'} is not of a kind this antiphon reads ({FORMAT})")
    tokens: Tokens = TOKENS[kind].load(folder, about)
    return tokens


@dataclass(frozen=True)
class WordsOfFile:
    """words.json: the vocabulary of a language model."""

    format: ClassVar = WORDS_FORMAT
    what: ClassVar = "words"
    words: tuple[str, ...]


def load_words(folder: str | Path) -> Words:
    """Load the words saved in `folder`."""
    return Words(read_as(WordsOfFile, Path(folder) / WORDS_FILE).words)
