"""What a command writes for those who follow its runs."""

from __future__ import annotations

import json

from antiphon.experiment.folder import check_folder, claim_folder, end_folder
from antiphon.recipes import recipe


def test_a_command_notes_its_end_and_a_new_one_begins_again(tmp_path):
    out, experiment = tmp_path / "out", recipe("fedavg")
    claim_folder(out, experiment, tmp_path, "print")
    assert "ended" not in json.loads((out / "experiment.json").read_text())
    end_folder(out)
    assert json.loads((out / "experiment.json").read_text())["ended"] is True
    check_folder(out, experiment, resume=True)
    claim_folder(out, experiment, tmp_path, "print")
    assert "ended" not in json.loads((out / "experiment.json").read_text())


def test_a_page_that_waits_for_the_first_run_does_not_block_it(tmp_path):
    (tmp_path / "report.html").write_text("waiting")
    check_folder(tmp_path, recipe("fedavg"), resume=False)
