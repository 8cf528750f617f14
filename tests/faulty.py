"""`python tests/faulty.py PLAN run …`: the command line, with faults that happen once each, one a start.

PLAN is a JSON file: a list of {"rank": …, "fault": {…}} as `command.Fault` takes them. A fault that has
happened leaves a file beside the plan; the first that has none is armed, in the process of its rank.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from command import Fault

from antiphon import cli
from antiphon.experiment import runner
from antiphon.pools.rendezvous import find_rank


class Once(Fault):
    """Leaves a file before it strikes; a signal of "parent" goes to whoever started this process."""

    def strike(self) -> None:
        marker.touch()
        if target == "parent":
            os.kill(os.getppid(), self.signal)
        else:
            super().strike()


plan = Path(sys.argv.pop(1))
runner.write_report = lambda *arguments: None  # drawing takes longer than all the rest
process = find_rank(os.environ)
for number, step in enumerate(json.loads(plan.read_text())):
    marker, target = plan.with_name(f"{plan.stem}-{number}-happened"), step.get("target", "self")
    if not marker.exists():
        if process is not None and process.rank == step["rank"]:
            Once(**step["fault"]).arm()
        break
cli.main()
