from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from antiphon.report import figures_file, write_report
from antiphon.report.drawing import MAX_POINTS, thin

VOID = {"meta", "br", "line"}


class Page(HTMLParser):
    """Checks that tags nest, and keeps what a browser would fetch or run."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.addresses, self.text = [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in {"src", "href", "xlink:href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in {"src", "href", "xlink:href"}]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in {"style", "script"}:
            self.text += data


def report(paths, destination):
    page = write_report(paths, destination)
    return Page(page.read_text(encoding="utf-8")), figures_file(page).read_text(encoding="utf-8")


def test_the_page_of_a_run_is_one_file_with_every_section_and_no_address_outside(make_run, tmp_path):
    page, results = report([make_run(tmp_path / "fedavg", rounds=8, failure_rate=0.3)], tmp_path / "out")
    for heading in ("Results", "Curves", "Speakers of test", "Weights over rounds", "Coverage of the pool",
                    "Clients left out", "Costs", "Configuration", "Versions"):  # fmt: skip
        assert heading in page.text
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert page.tags.count("script") == 1
    assert "worst decile" in page.text
    for part in (
        "WER % [95 % CI]",
        "S / D / I",
        "dropped out (simulated)",
        "torch 2.13.0",
        "3f9d2c1a7be04455",
    ):
        assert part in results


def test_the_command_that_repeats_a_run_is_one_that_git_understands(make_run, tmp_path):
    run = make_run(tmp_path / "fedavg")
    page, _ = report([run], tmp_path / "clean")
    assert "git checkout 3f9d2c1a7be04455a1c0c6d1a0a8e7a9d0f1b2c3\nantiphon run librispeech_ctc" in page.text
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**about, "commit": "3f9d2c1a7be0+"}))  # not all was committed
    page, _ = report([run], tmp_path / "changed")
    assert "git checkout 3f9d2c1a7be0  # the code also had changes that were not committed\n" in page.text
    assert "3f9d2c1a7be0+" in page.text


def test_names_from_outside_cannot_become_markup(make_run, tmp_path):
    names = [
        "<script>alert(1)</script>",
        '"><img src=x>',
        "_a$b$",
        "a|b\nc",
        "说话人",
        "x" * 200,
        "]]>",
        "&amp;",
    ]
    folder = make_run(tmp_path / "run", rounds=6, cohort_size=8, client_names=names, failure_rate=0.4)
    about = json.loads((folder / "run.json").read_text())
    about |= {"name": "<b>run</b>", "device": "<i>", "config": {"<u>": "</pre><script>"}}
    (folder / "run.json").write_text(json.dumps(about))
    page, results = report([folder], tmp_path / "out")
    assert page.tags.count("script") == 1
    assert not {"img", "i", "u"} & set(page.tags)
    assert "<b>run</b>" in page.text
    assert "<script>" not in re.sub(r"```.*?```", "", results, flags=re.DOTALL)


def test_several_runs_are_compared_in_one_page(make_run, tmp_path):
    gains = {"fedavg": 0.2, "dga": 0.4}
    folders = [make_run(tmp_path / name, gain=gain, rounds=10) for name, gain in gains.items()]
    page, results = report(folders, tmp_path / "compare.html")
    assert "dga has the lowest word error rate on test" in page.text
    assert "WER − first run" in page.text
    assert (tmp_path / "compare.html").is_file()
    lines = [line for line in results.splitlines() if line.startswith(("| start |", "| fedavg |", "| dga |"))]
    assert len(lines) >= 3


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": 0, "planned": 50, "validate_every": 0, "splits": ()},
        {"rounds": 0, "planned": 50, "which": ("start",)},
        {"rounds": 3, "planned": 50, "validate_every": 0, "splits": ()},
        {"rounds": 3, "planned": 50, "which": ("start",)},
        {"rounds": 3, "which": ("best",)},
        {"rounds": 1, "num_clients": 1, "cohort_size": 1, "num_speakers": 1},
        {"rounds": 2, "num_clients": 3, "cohort_size": 3, "num_speakers": 3, "failure_rate": 0},
    ],
)
def test_runs_that_lack_something_still_have_a_page(make_run, tmp_path, options):
    page, results = report([make_run(tmp_path / "run", **options)], tmp_path / "out")
    assert ("is not finished" in page.text) == ("planned" in options)
    assert ("not finished" in results) == ("planned" in options)


def test_a_run_without_rounds_beside_a_finished_one_has_a_page(make_run, tmp_path):
    folders = [
        make_run(tmp_path / "empty", rounds=0, planned=5, splits=(), validate_every=0),
        make_run(tmp_path / "full", rounds=5),
    ]
    page, _ = report(folders, tmp_path / "out")
    assert "full" in page.text


def test_rounds_without_numbers_are_drawn_as_gaps(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=2, splits=())
    lines = [
        {
            "round": 3,
            "cohort": ["a"],
            "clients": {},
            "failures": {"a": "NaN"},
            "loss": None,
            "valid": {"wer": None},
        },
        {
            "round": 4,
            "cohort": ["a"],
            "clients": {"a": {"loss": None, "weight": None, "norm": None}},
            "loss": None,
        },
    ]
    with (folder / "journal.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    report([folder], tmp_path / "out")


def test_a_thousand_clients_over_many_rounds_stay_a_small_page(make_run, tmp_path):
    folder = make_run(tmp_path / "big", rounds=400, num_clients=1000, num_speakers=300, validate_every=1)
    page = write_report([folder], tmp_path / "out")
    assert page.stat().st_size < 800_000


def test_the_same_runs_give_the_same_page_byte_for_byte(make_run, tmp_path):
    folder = make_run(tmp_path / "run", rounds=3)
    pages = [write_report([folder], tmp_path / name).read_bytes() for name in ("one", "two")]
    assert pages[0] == pages[1]


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path)


def test_thinning_keeps_the_mean_and_the_extremes():
    x, y = np.arange(2000.0), np.random.default_rng(0).normal(size=2000)
    at, mean, low, high = thin(x, y)
    assert len(at) == MAX_POINTS
    assert (low.min(), high.max()) == (y.min(), y.max())
    assert np.all((low <= mean) & (mean <= high))
    sizes = np.diff([*np.linspace(0, 2000, MAX_POINTS + 1).astype(int)])
    assert (mean * sizes).sum() == pytest.approx(y.sum())
