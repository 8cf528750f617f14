"""Who can read what commands write: speech and texts are their owner's alone, and names can be hidden."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from command import run_arguments
from world import write_source
from writers import FEW, TEXT

PRIVATE = re.compile(
    r"utterances\.jsonl|skipped\.jsonl|audio\.pack|frames\.f16|ids\.txt|texts\.txt|.*\.trn|lists\.jsonl(\.gz)?"
    r"|alignments\.txt|confusions\.txt|.*\.key|examples\.(html|md)"
)
NAME = "margaret"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that commands made for somebody who lets everyone read and write everything (umask 0)."""
    base = tmp_path_factory.mktemp("everything")
    source = write_source(base / "source")
    rows = [json.loads(line) for line in (source / "manifest.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {key: f"{NAME}-{row[key]}" for key in ("id", "speaker")}
    (source / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (base / "text.txt").write_text(TEXT)
    made = base / "made"
    run, scaffold = made / "out" / "fedavg", [setting.replace("fedavg", "scaffold") for setting in FEW]
    for arguments in (
        ["corpus", "import", source, made / "corpus", "--pseudonymise", base / "keys" / "names.key"],
        run_arguments(made / "corpus", made / "out", settings=FEW),
        ["run", "scaffold", "--data", made / "corpus", "--out", made / "states", *_sets(scaffold)],
        ["lm", "ngram", base / "text.txt", "--out", made / "lm", "--order", "2"],
        ["nbest", run, "--out", made / "lists.jsonl", "--beam", "2"],
        ["nbest", run, "--out", made / "lists.jsonl.gz", "--beam", "2"],
        ["alignments", run],
        ["report", run, "--out", made / "examples.html", "--examples", "2"],
        ["report", run, "--out", made / "report.html"],
    ):
        command = [sys.executable, "-m", "antiphon", *map(str, arguments)]
        done = subprocess.run(command, umask=0, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    return base


def _sets(settings: list[str]) -> list[str]:
    small = [s for s in run_arguments(Path(), Path()) if "=" in s and "fedavg" not in s and "seed" not in s]
    return [word for setting in (*small, *settings) for word in ("--set", setting)]


@pytest.mark.slow
def test_speech_and_texts_are_their_owner_s_alone_and_other_files_follow_the_umask(everything: Path) -> None:
    found = set()
    for path in sorted([*(everything / "made").rglob("*"), everything / "keys" / "names.key"]):
        mode, is_state = stat.S_IMODE(path.stat().st_mode), "clients" in path.parts
        if path.is_dir():
            assert mode == (0o700 if path.name == "clients" else 0o777), path
        elif PRIVATE.fullmatch(path.name) or is_state:
            assert mode == 0o600, path
            found.add("state" if is_state else path.name)
        else:
            assert mode == 0o666, path
    assert len(found) == 16, found


@pytest.mark.slow
def test_no_file_has_a_name_after_an_import_with_pseudonyms(everything: Path) -> None:
    files = [path for path in (everything / "made").rglob("*") if path.is_file()]
    assert len(files) > 60
    assert [path for path in files if NAME.encode() in path.read_bytes() or NAME in str(path)] == []
    assert NAME in (everything / "source" / "manifest.jsonl").read_text()
