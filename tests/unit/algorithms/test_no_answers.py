"""A round in which nobody answers ends a run with the reason, also if the run needs no answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from timed_runs import TimedRun

from antiphon.algorithms.afl import Afl
from antiphon.algorithms.compressed import Compressed
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.fedbuff import FedBuff
from antiphon.algorithms.feddyn import FedDyn
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.algorithms.krum import Krum
from antiphon.algorithms.norm_bounding import NormBounding
from antiphon.algorithms.q_fedavg import QFedAvg
from antiphon.algorithms.scaffold import Scaffold
from antiphon.algorithms.trimmed_mean import TrimmedMean
from antiphon.core import Algorithm, Stopped
from antiphon.engine import Rounds

ROUNDS = Rounds(total=2, cohort=3, min_clients=0)
ALGORITHMS: list[Algorithm[Any]] = [
    FedAvg(),
    FedBuff(buffer=2),
    FedDyn(),
    Scaffold(),
    Afl(),
    QFedAvg(),
    Krum(bad=0.0),
    TrimmedMean(),
    NormBounding(),
    GeometricMedian(),
    Compressed(),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_it_is_stopped_with_the_failures(algorithm: Algorithm[Any], tmp_path: Path) -> None:
    run = TimedRun(algorithm, tmp_path, ROUNDS, options={"faults": lambda task, client: "away"})
    with pytest.raises(Stopped, match=r"0 of 3 clients answered, 1 needed \(.: away; .: away; .: away\)"):
        run.run()
    assert run.entries == []
