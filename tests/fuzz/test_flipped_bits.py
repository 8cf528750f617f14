"""Flipped bits in every file that antiphon writes: each is found, with the file's name, or changes nothing.

A flip is harmless if everything that antiphon reads of the folder is the same as before. ANTIPHON_FLIPS is
the number of flips for each file (4 by default).
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter

import pytest
from written_folders import Folder, files_of, is_named, make_folders

NUM_FLIPS = int(os.environ.get("ANTIPHON_FLIPS", "4"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    return make_folders(tmp_path_factory.mktemp("folders"))


KINDS = (
    "corpus",
    "features",
    "experiment",
    "newer runs",
    "n-gram",
    "language model",
    "export",
    "ledgers",
    "site",
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_is_found_by_the_name_of_its_file_or_changes_nothing(
    kind: str, folders: dict[str, Folder]
) -> None:
    folder, chance, outcomes = folders[kind], random.Random(f"{kind} 0"), Counter[str]()
    intact = folder.digest()
    for path in files_of(folder):
        whole = path.read_bytes()
        for _ in range(NUM_FLIPS if whole else 0):
            damaged, flips = bytearray(whole), chance.choice((1, 1, 2, 8))
            for _ in range(flips):
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            path.write_bytes(bytes(damaged))
            try:
                outcome = "harmless" if folder.digest() == intact else "silent"
            except ValueError as error:
                outcome = "found" if is_named(path, str(error)) else f"unnamed: {error}"
            assert outcome in ("found", "harmless"), f"{path}: {flips} bits, {outcome}"
            outcomes[outcome] += 1
        path.write_bytes(whole)
    assert folder.digest() == intact
    print(f"{kind}: {dict(outcomes)}", file=sys.stderr)
    assert outcomes["found"] > 5 * outcomes["harmless"]
