from __future__ import annotations

from collections import Counter

from antiphon.scoring.alignment import (
    align_words,
    find_confusions,
    format_alignments,
    format_confusions,
    most_frequent,
)
from antiphon.scoring.error_rate import Errors

UTTERANCES = [
    align_words("84", "84-1", "the cat sat on the mat", "a cat sat the mat today"),
    align_words("84", "84-2", "", ""),
    align_words("1272", "1272-1", "the dog", "a dog"),
]

LISTING = """\


\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE

System name:   dga

Speakers:\x20
    0:  84
    1:  1272

Speaker sentences   0:  84   #utts: 2
id: (84-84-1)
Scores: (#C #S #D #I) 4 1 1 1
REF:  THE cat sat ON the mat *****\x20
HYP:  A   cat sat ** the mat TODAY\x20
Eval: S           D          I    \x20

id: (84-84-2)
Scores: (#C #S #D #I) 0 0 0 0

Speaker sentences   1:  1272   #utts: 1
id: (1272-1272-1)
Scores: (#C #S #D #I) 1 1 0 0
REF:  THE dog\x20
HYP:  A   dog\x20
Eval: S      \x20

"""

CONFUSIONS = """\
CONFUSION PAIRS                  Total                 (1)

   1:    2  ->  the ==> a
     -------
         2



INSERTIONS                       Total                 (1)

   1:    1  ->  today
     -------
         1



DELETIONS                        Total                 (1)

   1:    1  ->  on
     -------
         1
"""


def test_an_alignment_counts_as_the_error_rate_does():
    assert UTTERANCES[0].errors == Errors(substitutions=1, deletions=1, insertions=1, length=6)
    assert UTTERANCES[1].errors == Errors()


def test_the_listing_is_sclites_to_the_letter():
    assert format_alignments("dga", UTTERANCES) == LISTING


def test_where_capitals_are_spelling_errors_are_not_put_in_capitals():
    listing = format_alignments("x", [align_words("a", "1", "Paris is big", "paris is bit")])
    assert "REF:  Paris is big \nHYP:  paris is bit \nEval: S        S   \n" in listing


def test_confusions_are_counted_over_utterances():
    found = find_confusions(UTTERANCES)
    assert found.substitutions == Counter({("the", "a"): 2})
    assert (found.deletions, found.insertions) == (Counter(["on"]), Counter(["today"]))
    assert format_confusions(found) == CONFUSIONS


def test_most_frequent_first_then_by_the_alphabet():
    assert most_frequent(Counter({"b": 1, "c": 3, "a": 1})) == [("c", 3), ("a", 1), ("b", 1)]
