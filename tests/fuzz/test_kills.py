from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from marked import needs_proc


@needs_proc
def test_commands_that_are_killed_and_repeated_leave_what_undisturbed_ones_leave() -> None:
    """By hand: hundreds of strikes at all commands, see kills.py."""
    commands = [word for name in ("import", "run", "lm ngram") for word in ("--command", name)]
    script = Path(__file__).with_name("kills.py")
    command = [sys.executable, str(script), "--kills", "6", "--seed", "1", *commands]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.splitlines()
    assert last.split()[:2] == ["all", "6"]
