"""Tables that benchmarks make of results: counted by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from command import script_in_fork
from world import World

from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.session_texts import Sentence, SessionText
from antiphon.decoding.nbest import Hypothesis, NBest, write_nbest
from antiphon.lm.arpa import save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.scoring.trn import write_trn
from antiphon.workflows.adaptation_corpus import Texts

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run_script(name: str, *options: str | Path, out: Path) -> None:
    done = script_in_fork(BENCHMARKS / f"{name}.py", list(map(str, options)), out / f"{name}.log")
    assert done.code == 0, done.output


def test_lists_of_several_seeds_are_scored_beside_each_other(tmp_path: Path) -> None:
    """Of 4 words a seed: the teacher has 2 and 1 wrong, the student 1 and none."""

    def write(name: str, texts: tuple[str, str]) -> None:
        said = ("the cat", "a dog")
        entries = [
            NBest(f"{number}", (Hypothesis(text, (1,), -1.0), Hypothesis("x", (2,), -2.0)), ref, f"s{number}")
            for number, (text, ref) in enumerate(zip(texts, said, strict=True))
        ]
        write_nbest(tmp_path / f"{name}.jsonl.gz", entries)

    write("teacher-0", ("a cat", "the dog"))
    write("teacher-1", ("the cat", "the dog"))
    write("student-0", ("the cat", "the dog"))
    write("student-1", ("the cat", "a dog"))
    lists = [f"{name}={tmp_path}/{name}-*.jsonl.gz" for name in ("teacher", "student")]
    run_script("lists", *lists, "--baseline", "teacher", "--seeds", "0", "1", "--out", tmp_path, out=tmp_path)
    found = json.loads((tmp_path / "lists.json").read_text())["lists"]
    assert found["teacher"]["wer"]["by_seed"] == [0.5, 0.25]
    assert found["student"]["wer"]["by_seed"] == [0.25, 0.0]
    assert found["student"]["relative_to_baseline"]["estimate"] == pytest.approx(-2 / 3)
    assert "37.50" in (tmp_path / "lists.log").read_text()


def test_finished_runs_of_personalisation_become_one_result(tmp_path: Path) -> None:
    """Three meetings of 10 words: one gains, one loses; noise keeps half of a gain of 4 points."""
    clients = {"a": (4, 1), "b": (2, 3), "c": (3, 3)}
    wer, change = {"low": 0.2, "high": 0.3}, {"estimate": -0.2, "low": -0.3, "high": -0.1}
    rows = [
        {"name": "background", "rate": 0.3, "wer": None, "change": None, "test": {"p": 1.0}},
        {"name": "T = 1", "rate": 0.26, "wer": wer, "change": change, "test": {"p": 0.03}},
    ]
    counts = {name: {"words": 10, "before": b, "after": a} for name, (b, a) in clients.items()}
    settings = {"weights": {}, "adapted": "books", "mixture": {}, "agreement": 0.0, "schedule": {}}
    claims = [
        {"unit": unit, "rounds": 10, "composition": "basic", "epsilon": epsilon, "delta": 0.0}
        for unit, epsilon in (
            ("one word, one utterance", 2.0),
            ("one utterance", 60.0),
            ("one utterance", 40.0),
            ("one client (no cap)", None),
        )
    ]
    noisy = {"name": "paper", "epsilon": 2.0, "population": 1, "rates": [0.27, 0.29], "claims": claims}
    noise = {"background": 0.3, "no_noise": 0.26, "own_words": 0.31, "rows": [noisy]}
    folder = tmp_path / "run-noise"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({**settings, "rows": rows, "clients": counts}))
    (folder / "private.json").write_text(json.dumps({**noise, "sha256": "0"}))
    texts = "the cat sat\nthe dog sat\na dog sat on the mat\n"
    save_ngram(estimate(texts.splitlines(), order=2), tmp_path / "books")
    with gzip.open(tmp_path / "other-books.tsv.gz", "wt") as file:
        file.write(texts)
    run_script("marginals", tmp_path, "--only", "noise", "--out", tmp_path, out=tmp_path)
    result = json.loads((tmp_path / "marginals.json").read_text())
    assert result["command"] == "python benchmarks/marginals.py WORK --only noise"
    assert result["models"]["books"]["perplexity"] > 1
    found = result["runs"]["noise"]
    assert found["command"].startswith("antiphon personalize lists.jsonl.gz")
    assert (found["clients"], found["better"], found["worse"]) == (3, 1, 1)
    assert found["changes"] == pytest.approx({"a": -0.3, "b": 0.1, "c": 0.0})
    assert found["rows"] == [
        {"name": "background", "rate": 0.3, "wer": None, "change": None, "p": 1.0},
        {"name": "T = 1", "rate": 0.26, "wer": [0.2, 0.3], "change": [-0.2, -0.3, -0.1], "p": 0.03},
    ]
    assert found["noise"]["own_words_gain_kept"] == pytest.approx(-0.25)
    (row,) = found["noise"]["rows"]
    assert (row["rate"], row["gain_kept"]) == pytest.approx((0.28, 0.5))
    assert row["units"] == {"word": 2.0, "utterance": 40.0, "client": None}
    printed = (tmp_path / "marginals.log").read_text()
    assert "1 of 3 clients gain, 1 lose" in printed
    assert "26.00 [20.00, 30.00] | -20.00 [-30.00, -10.00] | 0.03" in printed
    assert "27.00 29.00 | 50" in printed


@pytest.fixture
def adaptation_texts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import adaptation_texts as module  # type: ignore[import-not-found]

    return module


def test_a_session_s_text_is_the_rest_of_its_book_and_never_what_is_tested(
    world: World, adaptation_texts: Any
) -> None:
    corpus = Corpus.open(world.corpus)
    tested = [u for u in corpus.utterances() if u.split == "test"]
    own = [{"id": u.id, "session": u.session, "book": "b", "text": u.text} for u in tested]
    more = [
        {"id": "x1", "session": "s10", "book": "b", "text": "same chapter"},
        {"id": "x2", "session": "other", "book": "b", "text": "other chapter"},
        {"id": "x3", "session": "s99", "book": "another", "text": "another book"},
    ]
    longest = max(("s10", "s11"), key=lambda name: sum(u.session == name for u in tested))
    found = adaptation_texts.session_sentences([*own, *more], corpus)
    assert list(found) == [longest]
    rest = [u.text for u in tested if u.session != longest]
    assert sorted(found[longest]) == sorted([*rest, "same chapter", "other chapter"])
    assert not {u.id for u in tested if u.session == longest} & {"x1", "x2"}


def test_new_words_are_counted_where_they_stand(adaptation_texts: Any) -> None:
    def text(name: str, *sentences: str) -> SessionText:
        return SessionText(name, tuple(Sentence(one, one) for one in sentences))

    def said(session: str, words: str) -> Utterance:
        return Utterance(words, "speaker", session, "test", 1.0, words, 0, 0)

    texts = Texts(
        (text("a", "the whale", "a harpoon"), text("b", "the mast")),
        (text("novels", "a mast and a whale"),),
        frozenset({"the", "a"}),
    )
    tested = [said("a", "the whale the whale a mast"), said("b", "the whale"), said("c", "a harpoon")]
    # New: whale, whale, mast; whale; harpoon. Of those, a's text has the two whales, b's and c's have none.
    counts = adaptation_texts.NewWords(said=10, new=5, in_session=2, in_organisation=4)
    assert adaptation_texts.new_words(tested, texts) == counts


def test_words_are_counted_by_where_they_are_written(tmp_path: Path, world: World) -> None:
    """Of one utterance: a word of the training text, of its session's, of the organisation's, of none."""
    corpus = Corpus.open(world.corpus)
    known = next(u.text.split()[0] for u in corpus.utterances() if u.split == "pool")
    tested = next(u for u in corpus.utterances() if u.split == "test")
    texts = tmp_path / "texts"
    (texts / "sessions").mkdir(parents=True)
    (texts / "sessions" / f"{tested.session}.txt").write_text("babab\n")
    (texts / "organisation.txt").write_text("babab abbba\n")
    for seed, heard in enumerate((f"{known} babab", f"{known} abbba bbbbb")):
        best = tmp_path / f"{seed}" / "row" / "evaluation" / "test" / "best"
        best.mkdir(parents=True)
        (tmp_path / f"{seed}" / "experiment.json").write_text('{"runs": ["row"]}')
        write_trn(best / "ref.trn", [(f"{known} babab abbba aaaaa", tested.speaker, tested.id)])
        write_trn(best / "hyp.trn", [(heard, tested.speaker, tested.id)])
    folders = [tmp_path / "0", tmp_path / "1"]
    options = ["--corpus", world.corpus, "--texts", texts, "--out", tmp_path]
    run_script("adaptation_words", *folders, *options, out=tmp_path)
    found = json.loads((tmp_path / "adaptation_words.json").read_text())["recognised"]["row"]
    assert list(found.values()) == [[2, 2], [1, 2], [1, 2], [0, 2]]


def test_journals_are_told_in_a_line_each(tmp_path: Path) -> None:
    """30 s of speech of two clients, labelled in 2 s of the 8 s of training; the best round is the second."""
    run = tmp_path / "out" / "soft"
    run.mkdir(parents=True)
    wers = [0.5, 0.3, 0.4]
    first, second = {"a": {"seconds": 10.0}}, {"b": {"seconds": 20.0}}
    clients: list[dict[str, dict[str, float]]] = [{}, first, {**first, **second}]
    journal = [
        {"round": n, "valid": {"wer": wer}, "clients": own}
        for n, (wer, own) in enumerate(zip(wers, clients, strict=True))
    ]
    clock = [{"round": n, "train_seconds": 4.0 * (n > 0), "gpu_mib": 1000.0 * n} for n in range(3)]
    clock[1]["task_label_seconds"] = 2.0
    for name, entries in (("journal.jsonl", journal), ("clock.jsonl", clock)):
        (run / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (tmp_path / "out" / "no run").mkdir()
    run_script("journals", run, tmp_path / "out" / "no run", out=tmp_path)
    *_, line = (tmp_path / "journals.log").read_text().splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["out/soft", "30.00", "1", "50.00", "40.00", "8", "25 %", "15", "2,000"]
