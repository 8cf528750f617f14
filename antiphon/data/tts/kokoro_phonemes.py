"""Phonemes of Kokoro: text to the symbols that the model was trained on, and symbols to numbers.

Kokoro was trained on the phonemes of the package misaki, which has one symbol for a diphthong or an affricate
(A is eɪ, ʧ is tʃ). misaki looks words up in a dictionary, and translates espeak-ng's phonemes for all others
(misaki 0.9.4, `EspeakFallback` in espeak.py, Apache-2.0). Here they are translated for all words.
"""

from __future__ import annotations

import re

from antiphon.data.tts.espeak import TIE, Espeak

MAX_PHONEMES = 510  # that the model takes at once

# The symbols of the model, in runs with consecutive numbers (`vocab` in the model's config.json).
RUNS = {
    1: ";:,.!?",
    9: '—…"()“” \u0303ʣʥʦʨᵝ\uab67AI',
    31: "O",
    33: "Q",
    35: "ST",
    39: "W",
    41: "Yᵊabcdef",
    50: "hijklmnopqrstuvwxyzɑɐɒæ",
    75: "βɔɕç",
    80: "ɖðʤə",
    85: "ɚɛɜ",
    90: "ɟ",
    92: "ɡ",
    99: "ɥ",
    101: "ɨɪʝ",
    110: "ɯɰŋɳɲɴø",
    118: "ɸθœ",
    123: "ɹ",
    125: "ɾɻ",
    128: "ʁɽʂʃʈʧ",
    135: "ʊʋ",
    138: "ʌɣɤ",
    142: "χʎ",
    147: "ʒʔ",
    156: "ˈˌː",
    162: "ʰ",
    164: "ʲ",
    169: "↓",
    171: "→↗↘",
    177: "ᵻ",
}
NUMBERS = {symbol: first + place for first, run in RUNS.items() for place, symbol in enumerate(run)}


def read_pairs(pairs: str) -> tuple[tuple[str, str], ...]:
    """Read pairs of old and new phonemes.

    >>> read_pairs("x>k ʲ>")
    (('x', 'k'), ('ʲ', ''))
    """
    return tuple((old, new) for old, _, new in (pair.partition(">") for pair in pairs.split()))


# From espeak-ng's phonemes to misaki's, in this order. Where misaki's translation differs from misaki's own
# dictionary, the dictionary counts: vowels of "there" and "here" in British English, and one ɹ in "during".
ANY_ACCENT = read_pairs(
    "ʔˌn\u0329>ʔn ʔn\u0329>ʔn a͡ɪ>I a͡ʊ>W d͡ʒ>ʤ e͡ə>ɛː e͡ɪ>A t͡ʃ>ʧ ɔ͡ɪ>Y ə͡l>ᵊl ʲo>jo ʲə>jə "
    "e>A ʲ> ɚ>əɹ r>ɹ x>k ç>k ɐ>ə ɬ>l \u0303>"
)
BRITISH = read_pairs("i͡ə>ɪə iə>ɪə ə͡ʊ>Q")
AMERICAN = read_pairs("o͡ʊ>O ɜːɹ>ɜɹ ɜː>ɜɹ ɪə>iə ː> ɹɹ>ɹ")
AT_LAST = read_pairs(f"o>ɔ ɾ>T ʔ>t {TIE}>")
SYLLABIC = re.compile("(\\S)\u0329")

# espeak-ng joins short words, such as "of the" and "for a". They are divided, and short words become those of
# misaki's dictionary.
FIRST = "[əʌɒ]v|ɪn|[ɔɒ]n|tə|fɚɹ?|fəɹ?|wɪð|h[ɐæa]d|hɐv|fɹʌm|ð[æa]t|wʌz|wʊd"
SECOND = "ð[əɪ]|ən?|ɐ|bi|bɪn|hɐv|tə|w[ˈˌ]ɪt͡ʃ"
JOINED = re.compile(rf"(?<!\S)({FIRST})({SECOND})(?!\S)")
ARTICLES = {"ə": "ɐ", "ən": "ɐn"}  # after another word
SHORT = dict(read_pairs("ɐ>ɐ ɐn>ɐn ðɪ>ði a͡ɪm>ˌIm a͡ɪl>ˌIl a͡ɪv>ˌIv a͡ɪd>ˌId"))
BRITISH_SHORT = SHORT | dict(read_pairs("əv>ɒv fə>fɔː fəɹ>fɔːɹ"))
AMERICAN_SHORT = SHORT | dict(read_pairs("əv>ʌv fɚ>fɔɹ fɚɹ>fɔɹ"))

# espeak-ng leaves out punctuation, so it is given the text between the marks. Kokoro has fewer marks.
MARKS = re.compile(r"(\s*[;:,.!?¡¿—…\"«»“”(){}\[\]]+\s*)+")
MARKS_OF_KOKORO = str.maketrans({"–": "—", "«": "“", "»": "”"})
DASHES = re.compile(r"-{2,}")

BOUNDARIES = tuple(re.compile(rf"{mark}[\"”)]* +") for mark in ("[.!?…]", "[,;:—]", ""))


def to_phonemes(text: str, espeak: Espeak, is_british: bool) -> str:
    """Return the phonemes and the punctuation of a text, all of them symbols of Kokoro.

    The capitals are diphthongs: "Hello, world!" is həlˈO, wˈɜɹld!
    """
    text = DASHES.sub("—", text.translate(MARKS_OF_KOKORO)).strip()
    marks = [match.group() for match in MARKS.finditer(text)]
    between = MARKS.split(text)[::2]  # the group of the pattern stands between them
    words = espeak.phonemes(between, "en" if is_british else "en-us")
    pieces = [translate(part, is_british) for part in words]
    joined = "".join(piece + mark for piece, mark in zip(pieces, [*marks, ""], strict=True))
    return " ".join("".join(symbol for symbol in joined if symbol in NUMBERS).split())


def translate(phonemes: str, is_british: bool) -> str:
    """Translate phonemes of espeak-ng, with ties within diphthongs, to those of misaki.

    >>> translate("əvə bˈɔ\u0361ɪ", is_british=False)
    'ʌv ɐ bˈY'
    """
    divided = JOINED.sub(lambda match: f"{match[1]} {ARTICLES.get(match[2], match[2])}", phonemes)
    short = BRITISH_SHORT if is_british else AMERICAN_SHORT
    return " ".join(short.get(word) or _translate_word(word, is_british) for word in divided.split())


def _translate_word(word: str, is_british: bool) -> str:
    for old, new in ANY_ACCENT:
        word = word.replace(old, new)
    word = SYLLABIC.sub(r"ᵊ\1", word)
    for old, new in (*(BRITISH if is_british else AMERICAN), *AT_LAST):
        word = word.replace(old, new)
    return word


def split_phonemes(phonemes: str, limit: int = MAX_PHONEMES) -> list[str]:
    """Divide phonemes that are too many for the model.

    They are divided at the end of a sentence, otherwise of a clause, otherwise of a word. Of several such
    places, the one nearest to the middle is taken, so that no part is very short.

    >>> split_phonemes("ðə ʃˈɪp. ɪt sˈAld, ænd wi sˈɔ", limit=12)
    ['ðə ʃˈɪp.', 'ɪt sˈAld,', 'ænd wi sˈɔ']
    """
    if len(phonemes) <= limit:
        return [phonemes] if phonemes else []
    for boundary in BOUNDARIES:
        if cuts := [match.end() for match in boundary.finditer(phonemes)]:
            cut = min(cuts, key=lambda place: abs(place - len(phonemes) / 2))
            parts = phonemes[:cut].strip(), phonemes[cut:].strip()
            return [piece for part in parts for piece in split_phonemes(part, limit)]
    return [phonemes[:limit], *split_phonemes(phonemes[limit:], limit)]
