"""The protocol: who knew what when, against a plain simulation; and settings found where they help."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.core import Stopped, Task, Update
from antiphon.decoding.nbest import Hypothesis, NBest
from antiphon.decoding.rescoring import tabulate
from antiphon.personalisation.federation import Federation, background_of
from antiphon.personalisation.marginal_adaptation import Mixture, estimate_unigram
from antiphon.personalisation.schedule import Schedule, client_of, cut
from antiphon.personalisation.trial import Grid, SecondPass, compared, search_grid
from antiphon.personalisation.word_cache import MarginalWorker
from antiphon.scoring.significance import pairs_of_sums

BACKGROUND = estimate_unigram(["a a a b b c"], vocabulary=["d", "e"])


def entry(client: str, number: int, *texts: str) -> NBest:
    hypotheses = tuple(Hypothesis(text, score=-float(rank)) for rank, text in enumerate(texts))
    return NBest(f"{client}{number}", hypotheses, reference=texts[-1], session=client, speaker=f"s{number}")


ENTRIES = [
    entry("x", 0, "a b", "a c"),
    entry("x", 1, "a", "a e"),
    entry("x", 2, "b a", "d a"),
    entry("x", 3, "c", "d"),
    entry("y", 0, "d d", "d"),
    entry("y", 1, "d e", "a d"),
    entry("z", 0, "b", "c"),
]


def plainly(num_rounds: int, sigma: float, at_once: bool) -> list[tuple[Counter[str], Counter[str]]]:
    """What everyone and the client had said before each list, with dictionaries and for loops."""
    heard = []
    for place, one in enumerate(ENTRIES):
        everyone: Counter[str] = Counter()
        own: Counter[str] = Counter()
        group = next(g for g, places in enumerate(groups_of(one.session, num_rounds)) if place in places)
        for other, another in enumerate(ENTRIES):
            its = next(
                g for g, places in enumerate(groups_of(another.session, num_rounds)) if other in places
            )
            for rank, hypothesis in enumerate(another.hypotheses):
                for word in hypothesis.text.split():
                    weight = math.exp(-(rank**2) / (2 * sigma**2))
                    everyone[word] += weight * (its < group)
                    if another.session == one.session:
                        own[word] += weight * (other < place if at_once else its < group)
        heard.append((everyone, own))
    return heard


def groups_of(client: str | None, num_rounds: int) -> list[list[int]]:
    return cut([place for place, e in enumerate(ENTRIES) if e.session == client], num_rounds + 1)


@pytest.mark.parametrize("num_rounds", [0, 1, 2, 5])
@pytest.mark.parametrize("at_once", [False, True])
def test_lists_are_decoded_with_what_was_known_before_their_group(num_rounds: int, at_once: bool) -> None:
    mixture = Mixture(0.4, 0.3, 1.0, sigma=2.0, smoothing=0.2)
    federation = Federation.of(ENTRIES, BACKGROUND, "meeting")
    history = federation.history(mixture.sigma, Schedule(num_rounds, at_once))
    found = federation.ratios(history, mixture)
    expected = []
    for one, (everyone, own) in zip(ENTRIES, plainly(num_rounds, 2.0, at_once), strict=True):
        for hypothesis in one.hypotheses:
            total = 0.0
            for word in hypothesis.text.split():
                u = BACKGROUND.probabilities[BACKGROUND.ids[word]]
                shares = [
                    said[word] / sum(said.values()) if sum(said.values()) else u for said in (everyone, own)
                ]
                smoothed = [0.8 * share + 0.2 * u for share in shares]
                total += math.log((0.3 * u + 0.4 * smoothed[0] + 0.3 * smoothed[1]) / u)
            expected.append(total)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_all_clients_count_with_the_federation_s_agreement() -> None:
    earlier = [entry("w", 0, "a b", "a d")]
    federation = replace(Federation.of(ENTRIES[:4], BACKGROUND, "meeting", earlier), agreement=1.0)
    last = federation.history(0.0, Schedule(3))[3]
    # Of "a b" and "a c", a stands in both; "a" or "a e"; "b a" or "d a". w: "a b" or "a d".
    expected = {"a": 3.0, "b": 1.0}
    assert {
        word: last.client_words.dense(BACKGROUND.size)[BACKGROUND.ids[word]] for word in expected
    } == expected
    assert last.shared_words is not None
    assert last.shared_words[BACKGROUND.ids["a"]] == pytest.approx(4 / 5.5)


def test_a_client_with_one_list_is_never_personalised_by_itself() -> None:
    federation = Federation.of(ENTRIES, BACKGROUND, "session")
    for schedule in (Schedule(2), Schedule(2, every_utterance=True)):
        last = federation.history(1.0, schedule)[-1]
        assert last.client_words.total == 0
        assert last.shared_words is None


def test_a_cohort_reports_for_everyone() -> None:
    federation = Federation.of(ENTRIES, BACKGROUND, "meeting")
    history = federation.history(0.0, Schedule(1, cohort=1))
    everyone = history[3].shared_words
    assert everyone is not None
    own = [Counter(word for e in ENTRIES[:2] for word in e.hypotheses[0].text.split()),
           Counter(["d", "d"]), Counter(["b"])]  # fmt: skip
    rows = [[said[word] / said.total() for word in BACKGROUND.words] for said in own]
    assert any(np.allclose(everyone, row) for row in rows)


def test_rounds_without_a_share_are_known_by_the_settings_they_always_had() -> None:
    federation = Federation.of(ENTRIES, BACKGROUND, "meeting")
    keys = {"sigma", "agreement", "rounds", "every_utterance", "cohort", "seed", "data_sha256"}
    assert federation._identity(1.0, Schedule(2)).keys() == keys
    assert federation._identity(1.0, Schedule(2, share=0.5)).keys() == {*keys, "share"}


def test_a_dictionary_stands_in_place_of_the_words_of_hypotheses() -> None:
    lists = [entry("x", 0, "a b zebra")]
    assert "zebra" in background_of(["a b"], lists).words
    assert background_of(["a b"], lists, ["c", "a"]).words == ("<unk>", "a", "b", "c")


def test_a_grid_with_one_point_has_nothing_to_search() -> None:
    assert Grid((0.5,), (0.5,), (2.0,), (0.1,)).only(0.2) == Mixture(0.5, 0.5, 2.0, 0.1, 0.2)
    assert Grid((0.5, 0.6), (0.5,), (2.0,), (0.1,)).only(0.2) is None
    assert Grid((0.5,), (), (2.0,), (0.1,)).only(0.2) is None


def test_lists_without_the_field_that_names_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="has no meeting"):
        client_of(replace(ENTRIES[0], session=None), "meeting")
    with pytest.raises(ValueError, match="not 'colour'"):
        client_of(ENTRIES[0], "colour")
    assert client_of(ENTRIES[0], "speaker") == "s0"


def test_settings_are_found_that_make_fewer_errors_and_none_where_none_help() -> None:
    """Meetings that say d: the first pass hears b for it now and then."""
    lists = tabulate(
        [entry("x", 0, "d d d"), entry("x", 1, "b", "d"), entry("y", 0, "d d"), entry("y", 1, "b", "d")], {}
    )
    federation = Federation.of(lists.entries, BACKGROUND, "meeting")
    second_pass = SecondPass(lists, {"score": 1.0}, adapted="score")
    grid = Grid(alphas=(0.0, 0.5), betas=(0.0, 0.4), lams=(0.1, 1.0), sigmas=(1.0,))
    steps = []
    found = search_grid(federation, second_pass, Schedule(1), grid, progress=lambda *step: steps.append(step))
    assert steps == [(0, 1), (1, 1)]
    assert found.alpha + found.beta > 0
    best = second_pass.best(federation.ratios(federation.history(1.0, Schedule(1)), found), found.lam)
    assert second_pass.lists.count(best).total == 0
    test = pairs_of_sums(*compared(lists, lists.first(), best).tolist())
    assert (test.num_segments, test.mean) == (2, -1.0)
    hopeless = tabulate([replace(e, reference=e.hypotheses[0].text) for e in lists.entries], {})
    none = search_grid(federation, SecondPass(hopeless, {"score": 1.0}, "score"), Schedule(1), grid)
    assert none.alpha == none.beta == none.lam == 0


def test_a_model_without_weight_cannot_be_adapted_to_effect() -> None:
    lists = tabulate(ENTRIES, {})
    second_pass = SecondPass(lists, {"rank": 1.0}, adapted="score")
    ratios = np.arange(len(lists.values), dtype=float)
    assert second_pass.best(ratios, 5.0).tolist() == second_pass.best(ratios, 0.0).tolist()
    with pytest.raises(ValueError, match="no column 'books' to adapt"):
        SecondPass(lists, {}, "books")


def test_clients_who_were_there_before_are_known_from_the_first_list_on() -> None:
    before = [entry("w", 0, "d d d e"), entry("x", 9, "a")]  # another meeting may have the same name
    federation = Federation.of(ENTRIES, BACKGROUND, "meeting", before)
    history = federation.history(0.0, Schedule(1))
    everyone = history[0].shared_words
    assert everyone is not None
    said = Counter(["d", "d", "d", "e", "a"])
    np.testing.assert_allclose(everyone, [said[word] / 5 for word in BACKGROUND.words])
    assert history[0].client_words.total == 0
    later = history[3].shared_words  # with the first groups of x, y and z
    assert later is not None
    said.update(["a", "b", "a", "d", "d", "b"])
    np.testing.assert_allclose(later, [said[word] / said.total() for word in BACKGROUND.words])


# --- Rounds that are kept -------------------------------------------------------------------------


def kept(folder: Path) -> Federation:
    return replace(Federation.of(ENTRIES, BACKGROUND, "meeting"), folder=folder)


def rounds_of(folder: Path) -> list[dict[str, object]]:
    (journal,) = folder.rglob("journal.jsonl")
    return [json.loads(line) for line in journal.read_text().splitlines()]


@pytest.mark.parametrize("stops_in", [0, 1, 3])
def test_rounds_that_were_interrupted_end_with_the_same_words_and_journal(
    stops_in: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, whole = Schedule(4, cohort=2, seed=3), kept(tmp_path / "whole")
    expected = whole.history(1.0, schedule)
    work = MarginalWorker.run

    def stop(self: MarginalWorker, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        if task.moment[0] == stops_in:
            raise Stopped("interrupted")
        return work(self, task, clients)

    monkeypatch.setattr(MarginalWorker, "run", stop)
    with pytest.raises(Stopped):
        kept(tmp_path / "stopped").history(1.0, schedule)
    assert len(rounds_of(tmp_path / "stopped")) == stops_in
    monkeypatch.setattr(MarginalWorker, "run", work)
    resumed = kept(tmp_path / "stopped").history(1.0, schedule)
    for one, other in zip(resumed, expected, strict=True):
        np.testing.assert_array_equal(one.client_words.counts, other.client_words.counts)
        assert (one.shared_words is None) == (other.shared_words is None)
        if one.shared_words is not None and other.shared_words is not None:
            np.testing.assert_array_equal(one.shared_words, other.shared_words)
    assert rounds_of(tmp_path / "stopped") == rounds_of(tmp_path / "whole")


def test_finished_rounds_are_read_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept(tmp_path).history(1.0, Schedule(2))
    monkeypatch.setattr(MarginalWorker, "run", lambda *arguments: pytest.fail("a client was asked again"))
    again = kept(tmp_path).history(1.0, Schedule(2))
    np.testing.assert_array_equal(again[3].shared_words, first[3].shared_words)  # type: ignore[arg-type]


def test_rounds_of_other_lists_or_settings_are_not_continued(tmp_path: Path) -> None:
    kept(tmp_path).history(1.0, Schedule(2))
    with pytest.raises(ValueError, match="rounds of other lists or settings"):
        kept(tmp_path).history(1.0, Schedule(2, cohort=1))
    fewer = replace(Federation.of(ENTRIES[:4], BACKGROUND, "meeting"), folder=tmp_path)
    with pytest.raises(ValueError, match="rounds of other lists or settings"):
        fewer.history(1.0, Schedule(2))
    other = estimate_unigram(["a b b b b"], vocabulary=["c", "d", "e"])
    with pytest.raises(ValueError, match="rounds of other lists or settings"):
        replace(Federation.of(ENTRIES, other, "meeting"), folder=tmp_path).history(1.0, Schedule(2))


def test_the_journal_names_who_reported_and_what_travelled(tmp_path: Path) -> None:
    kept(tmp_path).history(1.0, Schedule(2))
    first, last = rounds_of(tmp_path)
    assert first["cohort"] == ["x", "y", "z"]
    assert set(last["clients"]) == {"x", "y", "z"}  # type: ignore[call-overload]
    assert last["bytes_up"] == 3 * 8 * BACKGROUND.size
