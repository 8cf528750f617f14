"""The N-best lists of a site, and what a site needs to personalise them: one message for each run.

The message is a folder: settings, the words of the background model with their probabilities, and language
models, as antiphon writes them. Lists and references stay at the site; `ListWorker` does the work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from antiphon import config
from antiphon.algorithms.fmp import MARGINAL, PSEUDO_COUNT
from antiphon.algorithms.fmp_errors import REPORTS
from antiphon.decoding.nbest import NBest, read_nbest
from antiphon.federation.sent_folders import check_sent, pack_files, save_model
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.personalisation.list_clients import Keep, ListSettings, ListWorker, has_references
from antiphon.personalisation.marginal_adaptation import Unigram
from antiphon.personalisation.schedule import client_of
from antiphon.pools.remote_messages import Message, pack
from antiphon.records.files import write_json, write_text
from antiphon.records.reading import read_object, read_tensors, read_text

LISTS = "personalisation.json"  # in a setup that was sent: it is one for lists
WORDS, BACKGROUND, MODELS = "words.txt", "background.safetensors", "models"
ADVICE = "Remove its folder: the server sends it again"
KINDS = {"meeting": "session", "session": "session", "speaker": "speaker"}  # a meeting is a session
LONGEST = -2.2250738585072014e-308  # no number is written with more digits


def pack_list_setup(settings: ListSettings, background: Unigram, models: Sequence[Path]) -> Message:
    """Return the message that sets a run up at a site; models in the order of `settings.models`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_json(folder / LISTS, config.to_dict(settings))
        write_text(folder / WORDS, "\n".join(background.words))
        save_file({"u": torch.from_numpy(background.probabilities)}, folder / BACKGROUND)
        (folder / MODELS).mkdir()
        for number, path in enumerate(models):
            save_model(path, folder / MODELS / str(number))
        return pack_files("setup", folder)


def read_list_settings(setup: Path) -> ListSettings:
    """Return the settings in a setup that was sent."""
    path = setup / LISTS
    return config.from_dict(ListSettings, read_object(path, advice=ADVICE), str(path))


def read_background(setup: Path) -> Unigram:
    probabilities = read_tensors(setup / BACKGROUND, ADVICE)["u"].double().numpy()
    return Unigram(tuple(read_text(setup / WORDS).split("\n")), probabilities)


@dataclass(frozen=True)
class SiteLists:
    """The lists of each client of a site, in time order; kind: session or speaker."""

    kind: str
    clients: Mapping[str, tuple[NBest, ...]]

    @classmethod
    def read(cls, path: Path, client: str) -> SiteLists:
        """Read a file of N-best lists. client: meeting, session or speaker."""
        clients: dict[str, list[NBest]] = {}
        for entry in read_nbest(path):
            clients.setdefault(client_of(entry, client), []).append(entry)
        if not clients:
            raise ValueError(f"{path} has no lists")
        return cls(KINDS[client], {name: tuple(entries) for name, entries in clients.items()})

    @property
    def num_lists(self) -> int:
        return sum(map(len, self.clients.values()))

    def announcement(self) -> dict[str, Any]:
        """Return what leaves the site before a run: the names of clients, and two facts about each."""
        return {"kind": self.kind, "clients": {c: [n, has] for c, (n, has) in self.facts().items()}}

    def facts(self) -> dict[str, tuple[int, bool]]:
        """Return the number of lists of each client, and whether all of them have references."""
        return {c: (len(entries), has_references(entries)) for c, entries in self.clients.items()}

    def worker(self, setup: Path, keep: Keep) -> ListWorker:
        """Return the worker of a run."""
        settings = read_list_settings(setup)
        models = {}
        for number, name in enumerate(settings.models):
            folder = setup / MODELS / str(number)
            check_sent(folder)
            models[name] = load_sentence_model(folder)
        cut = {
            client: tuple(replace(entry, hypotheses=entry.hypotheses[: settings.depth]) for entry in entries)
            for client, entries in self.clients.items()
        }
        return ListWorker(cut, read_background(setup), models, settings, keep)

    def answer_sizes(self, setup: Path) -> tuple[int, int, int]:
        """Return the bytes of an answer in a round, its counts and the rest, and of one with error counts."""
        words = read_background(setup)
        longest = max(self.clients, key=lambda client: len(client.encode()))
        about = {"verb": "answer", "run": "0" * 32, "client": longest, "moment": [10**6, 10**6]}
        stats = {PSEUDO_COUNT: LONGEST, "num_words": LONGEST}
        row = {MARGINAL: torch.zeros(words.size, dtype=torch.float64)}
        counts = pack({**about, "stats": stats, "state_bytes": 0}, row)
        errors = pack({**about, "stats": dict.fromkeys(REPORTS, -1e9), "state_bytes": 0})
        return len(counts.body), len(counts.head), len(errors)


def lines_about(lists: SiteLists, setups: Sequence[Path]) -> Iterator[str]:
    """Yield what leaves a site with lists, to the byte."""
    for client, (count, has) in lists.facts().items():
        yield f"  {client}: {count} lists, {'with' if has else 'without'} references"
    yield "for each round of personalisation: one answer of each client, with the counts of its words (8"
    yield "bytes for each word of the server's vocabulary; capped in a private run), and two numbers"
    if not setups:
        yield "  no vocabulary has been sent here yet"
    for setup in setups:
        body, head, errors = lists.answer_sizes(setup)
        about = f"{body} bytes of counts, at most {head} bytes of report; at the end at most {errors} bytes"
        yield f"  vocabulary {setup.name[:8]}: {about}"
    yield "at the end: one report of each client. With references: the numbers of its lists and words, of"
    yield "its substitutions, deletions and insertions for four choices of hypotheses, and three sums of a"
    yield "test for each. Without references: the number of its lists"
