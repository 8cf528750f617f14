"""How monotonic attention is, by hand, and what the page shows of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from antiphon.report import write_report
from antiphon.report.attention_summary import attention_rows, centres, monotonicity, span
from antiphon.report.run_folder import RunFolder

DIAGONAL = np.eye(6)


def around(places, num_frames=12, width=1.0):
    """Attention that lies about these frames."""
    frames = np.arange(num_frames)
    weights = np.exp(-(((frames - np.array(places)[:, None]) / width) ** 2))
    return weights / weights.sum(axis=1, keepdims=True)


def test_attention_along_the_diagonal_is_monotonic_and_spans_everything():
    assert monotonicity([DIAGONAL]) == 1.0
    assert span(DIAGONAL) == 1.0


def test_attention_that_runs_backwards_is_not_monotonic():
    assert monotonicity([DIAGONAL[::-1]]) == 0.0
    assert span(DIAGONAL[::-1]) == 1.0


def test_attention_that_stands_still_goes_nowhere():
    still = np.full((5, 8), 1 / 8)
    assert monotonicity([still]) == 1.0
    assert span(still) == 0.0


def test_steps_back_are_counted_over_all_utterances_together():
    loops = around([2, 4, 6, 2, 4, 6, 8])  # 1 of 6 steps goes back
    assert np.allclose(centres(loops), [2, 4, 6, 2, 4, 6, 8], atol=0.1)
    assert monotonicity([loops]) == pytest.approx(5 / 6)
    assert monotonicity([loops, DIAGONAL[::-1]]) == pytest.approx(5 / 11)
    assert span(loops) == pytest.approx(6 / 11, abs=0.01)


@pytest.mark.parametrize(("back", "expected"), [(0.4, 1.0), (0.6, 0.5)])
def test_a_centre_that_falls_back_by_less_than_half_a_frame_stands_still(back, expected):
    there, then = np.eye(8)[4], np.eye(8)[6]
    between = (1 - back) * there + back * np.eye(8)[3]
    assert monotonicity([np.stack([there, between, then])]) == expected


def leave_attention(folder, which, weights, speakers=("1200", "<i>1213</i>", "1226")):
    examples = [
        {"id": f"{speaker}-7", "speaker": speaker, "seconds": 1.5, "weights": weights.tolist()}
        for speaker in speakers
    ]
    body = {
        "format": "antiphon-attention/1",
        "tokens": "recognised",
        "num_utterances": 40,
        "monotonic": monotonicity([weights]),
        "span": span(weights),
        "examples": examples,
    }
    (folder / "evaluation" / "test" / which / "attention.json").write_text(json.dumps(body))


def test_a_run_that_attends_has_maps_and_figures_in_its_report(make_run, tmp_path):
    folder = make_run(tmp_path / "las", rounds=3)
    leave_attention(folder, "start", around([5, 5, 4, 5, 2]))
    leave_attention(folder, "best", around([1, 3, 5, 4.8, 10]))
    page = write_report([folder], tmp_path / "out").read_text()
    section = page[page.index('<section id="attention">') :]
    section = section[: section.index("</section>")]
    assert section.count("data:image/png;base64") == 3
    assert "<td>50.0</td><td><b>100.0</b></td>" in section
    assert "<i>1213</i>" not in section
    assert "&lt;i&gt;1213&lt;/i&gt;" in section
    results = (tmp_path / "out" / "RESULTS.md").read_text()
    assert "| las | 40 | 50.0 | 100.0 |" in results


def test_a_run_without_attention_has_no_such_section(make_run, tmp_path):
    page = write_report([make_run(tmp_path / "ctc", rounds=3)], tmp_path / "out").read_text()
    assert "attention" not in page
    assert "Attention" not in (tmp_path / "out" / "RESULTS.md").read_text()


def test_runs_with_and_without_attention_are_compared_in_one_page(make_run, tmp_path):
    las, ctc = make_run(tmp_path / "las", rounds=2), make_run(tmp_path / "ctc", rounds=2)
    leave_attention(las, "best", DIAGONAL)
    (row,) = attention_rows([RunFolder.load(ctc), RunFolder.load(las)], "test")
    assert (row.label, row.before, row.after.monotonic) == ("las", None, 1.0)
    assert "Attention on test" in write_report([ctc, las], tmp_path / "out").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "antiphon-attention/9"}, "attention.json has format 'antiphon-attention/9'"),
        ({"monotonic": None}, r"attention.json is damaged \(monotonic: expected a number, not null"),
        (
            {"examples": [{"speaker": "a", "seconds": 1.0, "weights": [0.5]}]},
            r"weights\[0\]: expected a list",
        ),
        ({"examples": [{"speaker": "a", "seconds": 1.0}]}, r"examples\[0\].weights: it is missing"),
    ],
)
def test_a_damaged_file_is_named(make_run, tmp_path, change, message):
    folder = make_run(tmp_path / "las", rounds=2)
    leave_attention(folder, "best", DIAGONAL)
    path = folder / "evaluation" / "test" / "best" / "attention.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        write_report([folder], tmp_path / "out")
