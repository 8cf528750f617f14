"""docs/check.py: what it finds on pages, how it compares, and its quick commands."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import check
import pytest
from command import Antiphon

QUICK = [
    command
    for page in check.pages()
    for command in check.commands(page)
    if check.is_quick(command) and command.text.startswith("antiphon")
]
SOURCES = "LibriSpeech|kaldi|manifests|nemo|en|support|dataset|save|asr1|deutsch|untidy"
IMPORTS = [
    command
    for command in check.commands(check.ROOT / "docs" / "bring-your-corpus.md")
    if command.shown is not None and re.search(rf"import ({SOURCES})\b", command.text)
]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with two commands that show output, and one that does not."""
    monkeypatch.setattr(check, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "speed.py").write_text("print('fast')\n")
    (tmp_path / "README.md").write_text("# Nothing to run\n")
    path = tmp_path / "docs" / "page.md"
    path.write_text(
        "# A page\n\n```console\n$ echo one \\\n    two\none two\n\n$ cat missing\n…\n```\n\n"
        "```sh\nantiphon demo\n```\n"
    )
    return path


def test_commands_have_their_lines_and_what_the_page_shows(page: Path) -> None:
    first, second, third = check.commands(page)
    assert (first.line, first.text, first.shown) == (4, "echo one two", "one two\n\n")
    assert (second.place, second.text, second.shown) == ("docs/page.md:8", "cat missing", "…\n")
    assert (third.text, third.shown) == ("antiphon demo", None)


def test_benchmarks_cannot_change_the_results_of_the_repository(page: Path, tmp_path: Path) -> None:
    folder = check.Workshop(tmp_path / "work").page_folder("page")
    (folder / "benchmarks" / "results").mkdir()
    (folder / "benchmarks" / "results" / "speed.json").write_text("{}")
    assert (folder / "benchmarks" / "speed.py").exists()
    assert not list((page.parents[1] / "benchmarks" / "results").iterdir())


@pytest.mark.parametrize(
    ("shown", "printed", "result"),
    [
        ("WER 61.5 %", "WER 61.5 %\n", check.SAME),
        ("seed ━━━━ 8/8 00:17 loss 0.204\ndone in 5 s", "done in 17 s\nseed ━━━━━━ 8/8 01:02", check.SAME),
        ("a long line that\n    the page breaks", "a long line that the page breaks", check.SAME),
        ("first\n…\nlast", "first\nmore\nstill more\nlast", check.SAME),
        ("first\n…\nlast", "first\nlast\nand another", check.DIFFERENT),
        ("WER 61.5 %", "WER 61.9 %", check.FIGURES),
        ("WER 61.5 % [50.1, 72.0], round 12", "WER 62.5 % [51.1, 73.0], round 6", check.FIGURES),
        ("WER 61.5 % [50.1, 72.0], round 12", "WER 23.1 % [17.6, 28.8], round 12", check.DIFFERENT),
        ("SHA-256 94e90a46", "SHA-256 94e90a47", check.DIFFERENT),
        ("--audio-root /data/voices in 5s", "--audio-root /tmp/a/b/voices in 1.5s", check.SAME),
        ("seed 61.5\ndga 49.8", "seed 61.5", check.DIFFERENT),
        ("seed 61.5", "sead 61.5", check.DIFFERENT),
        ("", "something", check.DIFFERENT),
    ],
)
def test_figures_may_differ_and_words_may_not(shown: str, printed: str, result: str) -> None:
    assert check.compare(shown, printed) == result


def test_a_page_that_shows_something_else_is_reported(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page.write_text("```console\n$ echo one\none\n\n$ echo two\nthree\n\n$ exit 3\n```\n")
    assert check.main(["--work", str(tmp_path / "work")]) == 1
    printed = capsys.readouterr().out
    assert "same           docs/page.md:2: echo one" in printed
    assert "DIFFERENT      docs/page.md:5: echo two" in printed
    assert "FAILED         docs/page.md:8: exit 3" in printed
    assert printed.endswith("1 same, 0 figures differ, 1 DIFFERENT, 1 FAILED, 0 not run\n")


def test_the_list_says_what_each_command_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--list", "--page", "pruning"]) == 0
    printed = capsys.readouterr().out
    assert "antiphon prune --plan transducer-published --sparsity 0.5\n    quick" in printed
    assert "--only third --only half\n    minutes" in printed
    assert "needs LibriSpeech" in check.reason_not_to_run(
        check.Command(
            check.ROOT / "README.md", 1, "antiphon run x --set frontend.path=encoder_model.onnx", ""
        )
    )


@pytest.mark.parametrize("command", QUICK, ids=lambda command: command.place)
def test_quick_commands_print_what_their_pages_show(
    command: check.Command, antiphon: Antiphon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    done = antiphon(*shlex.split(command.text)[1:])
    assert check.compare(command.shown or "", done.output) == check.SAME, done.output


def test_runs_of_the_fairness_table_are_made_by_the_commands_of_the_page() -> None:
    (block,) = [b for b in check.blocks(check.ROOT / "docs" / "heterogeneity.md", "sh") if "fair.yaml" in b]
    commands = re.sub(r" *\\\n *", " ", block).strip().splitlines()
    assert " && ".join(commands) == check.MAKERS["fair"]


@pytest.mark.parametrize("command", IMPORTS, ids=lambda command: command.place)
def test_imports_of_other_formats_print_what_the_page_shows(
    command: check.Command, antiphon: Antiphon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stderr(io.StringIO()):
        check.Workshop(tmp_path).provide(command, tmp_path)
    done = antiphon(*shlex.split(command.text)[1:])
    assert check.compare(command.shown or "", done.output) == check.SAME, done.output
