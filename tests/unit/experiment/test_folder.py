"""The folder of an experiment: what may be in it before the first run."""

from __future__ import annotations

from antiphon.experiment.folder import check_folder
from antiphon.recipes import recipe


def test_a_page_that_waits_for_the_first_run_does_not_block_it(tmp_path):
    (tmp_path / "report.html").write_text("waiting")
    check_folder(tmp_path, recipe("fedavg"), resume=False)
