"""`antiphon personalize` with lists at two sites, over real TLS, comes to the bits of one machine."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from federated import Federation, free_port, wait_until

import antiphon
from antiphon.decoding.nbest import Hypothesis, NBest, read_nbest, write_nbest
from antiphon.federation.kits import create_kits
from antiphon.lm.arpa import save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.personalisation.trial import Grid
from antiphon.records.checkpoint import folder_of, saved_rounds

SITES = ("berlin", "oslo")
TEXT = ["the cat sat", "the dog sat", "a dog sat on the mat", "the cat ran", "a fog sat"] * 4
OWN = {"berlin": ("fog", "bog"), "oslo": ("log", "hog")}
SETTINGS = ["--alpha", "0.5", "--beta", "0.25", "--lambda", "1", "--sigma", "1", "--client", "meeting"]


def lists_of(meetings: tuple[str, ...], split: str) -> list[NBest]:
    """Each meeting has a word of its own, which is often heard as "dog"; scores are those of chance."""
    chance, lists = random.Random(f"{meetings}"), []
    for word in meetings:
        for number in range(8):
            heard = [f"the {one} {verb}" for one in (word, "dog", "cat") for verb in ("sat", "ran")]
            chance.shuffle(heard)
            hypotheses = tuple(
                Hypothesis(text, score=-chance.random(), parts={"acoustic": -chance.random()})
                for text in heard
            )
            said = f"the {word} {chance.choice(('sat', 'ran'))}"
            lists.append(NBest(f"{word}{number}", hypotheses, said, session=word, split=split))
    return lists


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Sites with lists; the third file is that of one machine with all of them and the server's."""
    folder = tmp_path_factory.mktemp("lists")
    made = Federation(folder, free_port())
    create_kits(f"localhost:{made.port}", SITES, folder / "kits")
    (folder / "text.txt").write_text("\n".join(TEXT))
    (folder / "dictionary.txt").write_text("fog bog log hog cog dog cat sat ran the a")
    save_ngram(estimate(TEXT, order=2), folder / "lm.arpa")
    own = {site: lists_of(meetings, "test") for site, meetings in OWN.items()}
    server = lists_of(("cog",), "heldout")
    for name, lists in {**own, "server": server, "all": [*server, *own["berlin"], *own["oslo"]]}.items():
        write_nbest(folder / f"{name}.jsonl", lists)
    try:
        for site in SITES:
            made.start(site, "--lists", str(folder / f"{site}.jsonl"))
        yield made
    finally:
        for site in list(made.running):
            made.kill(site)


def words_for(sites: Federation, out: Path, *options: str) -> list[str]:
    own = [
        "--background",
        str(sites.folder / "text.txt"),
        "--dictionary",
        str(sites.folder / "dictionary.txt"),
    ]
    own += ["--lm", f"own={sites.folder / 'lm.arpa'}", "--weight", "own=1", "--weight", "acoustic=0.5"]
    return ["personalize", *own, "--federation", str(sites.kit("server")), "--out", str(out), *options]


def simulated(sites: Federation, out: Path, **more: Any) -> None:
    folder = sites.folder
    files = (folder / "all.jsonl", [folder / "text.txt"])
    model, weights = {"own": folder / "lm.arpa"}, {"own": 1.0, "acoustic": 0.5}
    options = {"dictionary": [folder / "dictionary.txt"], "lm": model, "weights": weights, "rounds": [5]}
    antiphon.personalize(*files, tune_splits="heldout", splits="test", out=out, **options, **more)


def results_of(out: Path) -> dict[str, object]:
    """results.json; of one machine without the rows of other settings, which only a simulation has."""
    body = json.loads((out / "results.json").read_text())
    names = ("first pass", "background model", "T = 5", "oracle")
    return {**body, "rows": [row for row in body["rows"] if row["name"] in names], "sha256": None}


def assert_same_rounds(away: Path, here: Path) -> None:
    one, other = (out / "rounds" / "scored-T5-sigma1" for out in (away, here))
    assert saved_rounds(one / "checkpoints") == saved_rounds(other / "checkpoints") == list(range(6))
    for number in range(1, 6):
        files = [folder_of(run / "checkpoints", number) / "state.safetensors" for run in (one, other)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_results_have_the_bits_of_one_machine_after_a_kill(sites: Federation, tmp_path: Path) -> None:
    """The server has no lists. It is killed between two rounds, and goes on."""
    away, log = tmp_path / "away", tmp_path / "server.log"
    words = words_for(sites, away, "--rounds", "5", *SETTINGS)
    server = sites.command(words, log)
    begun = away / "rounds" / "scored-T5-sigma1" / "checkpoints"
    wait_until("two rounds", lambda: server.poll() is not None or len(saved_rounds(begun)) > 2, 90)
    server.send_signal(signal.SIGKILL)
    server.wait()
    again = sites.command([*words, "--resume"], log)
    assert again.wait(120) == 0, log.read_text()
    simulated(sites, tmp_path / "here", grid=Grid((0.5,), (0.25,), (1.0,), (1.0,)))
    assert results_of(away) == results_of(tmp_path / "here")
    assert_same_rounds(away, tmp_path / "here")
    found = json.loads((away / "results.json").read_text())["clients"]
    assert any(client["after"] < client["before"] for client in found.values())
    for site in SITES:  # the lists in their new order stay at the site
        ranked = [entry for path in sites.kit(site).glob("work/ranked/*/*") for entry in read_nbest(path)]
        assert len(ranked) == 16
        said = (sites.folder / f"{site}.log").read_text()
        assert "ranked again" in said


def test_the_server_finds_settings_on_lists_of_its_own_and_adds_noise(
    sites: Federation, tmp_path: Path
) -> None:
    """A site without references ranks its lists too, and the server says that it gets no error counts."""
    hidden = [replace(entry, reference=None) for entry in read_nbest(sites.folder / "oslo.jsonl")]
    write_nbest(sites.folder / "hidden.jsonl", hidden)
    sites.kill("oslo")
    sites.start("oslo", "--lists", str(sites.folder / "hidden.jsonl"))
    away, log = tmp_path / "away", tmp_path / "server.log"
    own = (str(sites.folder / "server.jsonl"), "--tune", "heldout", "--alpha", "0.25,0.5", "--sigma", "1")
    words = words_for(sites, away, "--rounds", "2", "--private", "gaussian=4", "--cap", "5", *own)
    server = sites.command(words, log)
    assert server.wait(180) == 0, log.read_text()
    said = log.read_text()
    assert "2 of 4 clients have no references" in said
    assert "epsilon (delta) of one client, 2 rounds" in said
    assert json.loads((away / "private.json").read_text())["kind"] == "gaussian"
    assert json.loads((away / "results.json").read_text())["clients"].keys() == {"fog", "bog"}
