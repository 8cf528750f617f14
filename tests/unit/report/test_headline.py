"""What the page says about the result: which runs are compared, and with what."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from antiphon.report import figures, plots, tables
from antiphon.report.headline import cards, headline
from antiphon.report.html import render
from antiphon.report.run_folder import load_runs
from antiphon.scoring.trn import write_trn

SPEAKERS = "uvwxyz"
SEED, WORSE, BETTER = (5, 5, 6, 5, 6, 5), (4, 4, 5, 4, 4, 4), (3, 3, 4, 3, 3, 3)
AS_GOOD = (2, 4, 4, 3, 3, 4)  # one error more than BETTER, but not for every speaker


@pytest.fixture
def experiment(make_run, tmp_path):
    """Return a function that writes runs: name -> (errors of six speakers with 10 words each, start)."""

    def write(**runs) -> list[Path]:
        for name, (errors, start) in runs.items():
            folder = make_run(tmp_path / name, splits=(), num_clients=1 if start is None else 10, rounds=4)
            about = json.loads((folder / "run.json").read_text())
            (folder / "run.json").write_text(json.dumps({**about, "started_from": start}))
            write_scores(folder, "best", errors)
            write_scores(folder, "start", runs[start][0] if start in runs else [10] * 6)
        return [tmp_path / name for name in runs]

    return write


def write_scores(folder, which, errors):
    def tally(wrong, length):
        counts = {"substitutions": wrong, "deletions": 0, "insertions": 0, "length": length}
        return {"words": counts, "characters": counts, "num_utterances": length // 10}

    speakers = {name: tally(wrong, 10) for name, wrong in zip(SPEAKERS, errors, strict=True)}
    target = folder / "evaluation" / "test" / which
    target.mkdir(parents=True)
    scores = {"split": "test", "which": which, **tally(sum(errors), 60), "speakers": speakers}
    (target / "scores.json").write_text(json.dumps(scores))


def headline_of(folders):
    runs = load_runs(folders)
    return headline(runs, "test", tables.results(runs, "test"))


def test_a_winner_is_named_where_the_paired_interval_excludes_zero(experiment):
    text = headline_of(experiment(seed=(SEED, None), fedavg=(WORSE, "seed"), dga=(BETTER, "seed")))
    assert text.startswith("dga has the lowest word error rate on test, 31.7 %. This is 40.6 % fewer errors ")
    assert "than seed, the model it started from (95 % interval" in text
    assert text.endswith(" It learnt from 10 clients, which sent no speech.")


def test_runs_that_do_not_differ_are_not_ranked(experiment):
    folders = experiment(seed=(SEED, None), hier=(AS_GOOD, "seed"), dga=(BETTER, "seed"))
    text = headline_of(folders)
    assert text.startswith(
        "dga has a word error rate of 31.7 % on test, not distinguishable from hier (33.3 %). "
    )
    assert "lowest word error rate" not in text
    page = render(load_runs(folders))
    assert page.count('<tr class="tied">') == 2
    assert '<tr class="best">' not in page


def test_a_run_that_changed_nothing_is_not_distinguishable_from_its_start(experiment):
    folders = experiment(seed=(BETTER, None), dga=(AS_GOOD, "seed"))
    text = headline_of(folders[1:])
    assert text.startswith("The word error rate on test is 33.3 %. It is not distinguishable from seed,")


def test_nothing_is_compared_with_random_weights(experiment):
    folders = experiment(seed=(SEED, None))
    assert headline_of(folders) == "The word error rate on test is 53.3 %."
    runs = load_runs(folders)
    (row,) = tables.results(runs, "test")
    assert row.label == "seed"
    assert row.change is row.start is None
    assert tables.before_and_after(runs[0], "test") is None
    assert tables.worst_deciles(runs, "test")[0].before is None
    page = render(runs)
    assert "before" not in page.partition("<main>")[2]
    assert "→" not in page


def test_runs_with_other_test_words_are_not_ranked_without_a_word(experiment):
    folders = experiment(a=(WORSE, None), b=(BETTER, None))
    scores = folders[0] / "evaluation" / "test" / "best" / "scores.json"
    scores.write_text(scores.read_text().replace('"u"', '"other"'))
    assert "there is no paired interval to compare it with a (41.7 %)" in headline_of(folders)


def test_cards_of_several_runs_have_no_ranges_of_unlike_numbers(experiment):
    runs = load_runs(experiment(seed=(SEED, None), fedavg=(WORSE, "seed"), dga=(BETTER, "seed")))
    shown = {name: (value, detail) for name, value, detail in cards(runs, tables.results(runs, "test"))}
    assert shown["Rounds"] == ("12", "of all runs")
    assert shown["Clients"] == ("10", "4 drawn each round")
    assert shown["Runs"] == ("3", "all finished")


def test_the_caption_speaks_of_a_grey_line_only_if_it_is_drawn(experiment):
    folders = experiment(seed=(SEED, None), fedavg=(WORSE, "seed"), dga=(BETTER, "seed"))
    with_seed, without_seed = (
        figures.of_results(tables.results(load_runs(chosen), "test"))[1].caption
        for chosen in (folders, folders[1:])
    )
    assert "Grey" not in with_seed
    assert "Grey and dashed: the starting model." in without_seed


def set_weights(folder, equal):
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    for entry in lines:
        clients = entry.get("clients", {})
        for index, stats in enumerate(clients.values()):
            stats["weight"] = 1 / len(clients) if equal else (index + 1) / sum(range(len(clients) + 1))
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_weights_that_are_open_are_not_all_equal(experiment):
    folders = experiment(seed=(SEED, None), fedavg=(WORSE, "seed"), dga=(BETTER, "seed"))
    set_weights(folders[1], equal=False)
    set_weights(folders[2], equal=True)
    weights = render(load_runs(folders)).partition('id="weights"')[2].partition("</section>")[0]
    opened, closed = weights.split("<details")[1:]
    assert opened.startswith(" open>")
    assert "fedavg</summary>" in opened
    assert closed.startswith(">")
    assert "All clients of a round had the same weight." in closed


def test_a_legend_has_only_runs_that_are_drawn(experiment):
    folders = experiment(seed=(SEED, None), fedavg=(WORSE, "seed"), dga=(BETTER, "seed"))
    page = render(load_runs(folders))
    for section, has_seed in {"curves": True, "weights": False, "coverage": False, "costs": True}.items():
        body = page.partition(f'id="{section}"')[2].partition("</section>")[0]
        key = body.partition('<ul class="key">')[2].partition("</ul>")[0]
        assert ("seed" in key) == has_seed, section
        assert "fedavg" in key
        assert "dga" in key


def test_a_run_keeps_its_colour_in_figures_that_leave_out_others(experiment):
    page = render(load_runs(experiment(seed=(SEED, None), fedavg=(WORSE, "seed"))))
    coverage = page.partition('id="coverage"')[2].partition("</section>")[0]
    assert "#0072b2" not in coverage.lower()  # the colour of the first run
    assert "#d55e00" in coverage.lower()


def write_texts(folder, which, texts):
    target = folder / "evaluation" / "test" / which
    for name, column in (("ref", 0), ("hyp", 1)):
        rows = [(pair[column], speaker, "1") for speaker, pair in zip(SPEAKERS, texts, strict=True)]
        write_trn(target / f"{name}.trn", rows)


def test_a_report_has_texts_only_if_it_is_asked_for_them(experiment, tmp_path):
    folder = experiment(seed=(SEED, None), dga=(BETTER, "seed"))[1]
    write_texts(folder, "start", [(f"said{name}", f"first{name}") for name in SPEAKERS])
    write_texts(folder, "best", [(f"said{name}", f"then{name}") for name in SPEAKERS])
    runs = load_runs([folder])
    plain = render(runs)
    assert not any(f"{word}v" in plain for word in ("said", "first", "then"))
    page = render(runs, 2).partition('id="examples"')[2].partition("</section>")[0]
    for name in SPEAKERS:
        is_shown = name in "vy"  # evenly spaced
        assert (f"said{name}" in page) == (f"first{name}" in page) == (f"then{name}" in page) == is_shown
    assert page.index("before") < page.index("firstv") < page.index("after") < page.index("thenv")


def test_examples_of_runs_without_transcripts_say_so(experiment):
    page = render(load_runs(experiment(seed=(SEED, None))), 2)
    assert "There are no transcripts" in page


def test_the_only_run_with_a_score_is_not_called_the_lowest(experiment, make_run, tmp_path):
    folders = experiment(seed=(SEED, None))
    folders.append(make_run(tmp_path / "dga", rounds=1, planned=5, splits=()))
    assert headline_of(folders) == "seed has a word error rate of 53.3 % on test."
    assert '<tr class="best">' not in render(load_runs(folders))


def test_random_weights_do_not_flatten_the_curves_of_runs_that_start_from_a_model(experiment):
    runs = load_runs(experiment(seed=(SEED, None), dga=(BETTER, "seed")))
    axes = Figure().subplots()
    plots._cap(axes, runs, [np.array([1.0, 0.3, 0.22]), np.array([0.22, 0.15])])
    assert axes.get_ylim()[1] == pytest.approx(1.3 * 0.22)
    alone = Figure().subplots()
    plots._cap(alone, runs[:1], [np.array([1.0, 0.3, 0.22])])
    assert alone.get_ylim() == (0.0, 1.0)  # unchanged
