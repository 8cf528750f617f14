"""The folder of an experiment: what may be in it before the first run."""

from __future__ import annotations

import pytest

from antiphon.experiment import folder
from antiphon.experiment.folder import check_folder
from antiphon.recipes import recipe


def test_a_page_that_waits_for_the_first_run_does_not_block_it(tmp_path):
    (tmp_path / "report.html").write_text("waiting")
    check_folder(tmp_path, recipe("fedavg"), resume=False)


@pytest.mark.parametrize("target", ["experiment.json", "nowhere"])
def test_a_link_that_leads_nowhere_in_place_of_the_experiment_is_named(target, tmp_path):
    (tmp_path / "experiment.json").symlink_to(target)
    with pytest.raises((ValueError, OSError), match=r"experiment\.json"):
        check_folder(tmp_path, recipe("fedavg"), resume=True)


def test_outside_a_checkout_the_commit_is_what_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "__file__", str(tmp_path / "antiphon" / "experiment" / "folder.py"))
    monkeypatch.delenv("ANTIPHON_COMMIT", raising=False)
    assert folder.commit() is None
    monkeypatch.setenv("ANTIPHON_COMMIT", "0123456789ab")
    assert folder.commit() == "0123456789ab"


def test_a_copy_with_a_repository_of_its_own_has_the_commit_of_the_environment(monkeypatch):
    monkeypatch.setenv("ANTIPHON_COMMIT", "0123456789ab")
    assert folder.commit() == "0123456789ab"
    monkeypatch.setenv("ANTIPHON_COMMIT", "")
    assert folder.commit() != "0123456789ab"
