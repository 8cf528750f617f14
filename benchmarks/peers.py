"""The same rounds through antiphon, a bare PyTorch loop, pfl-research and Flower: seconds, and the same loss.

    python benchmarks/peers.py --pfl PYTHON --flower PYTHON

PYTHON is the interpreter of an environment that has the peer (`pip install pfl torch`,
`pip install 'flwr[simulation]' torch`); a peer without one is left out. 100 clients with 50 samples each,
20 of them a round, one epoch of SGD in batches of ten, new weights the mean of theirs by number of samples.
Data, first weights and cohorts are made here once and read by everyone, see `frameworks/`. Every framework
has a process of its own, one torch thread in each, and they take turns of a few rounds, in rotating order; a
session ends when the work is done, and five sessions are run. Start-up and each session's first turn are not
counted. Flower takes turns with the bare loop alone: its idle processes would disturb the others. `noop` has
two million parameters and no training: only the carrying.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import argument_parser, print_table, write_result
from frameworks.workload import MODELS, SEED, Ctc, Mlp, Wide, Workload, client_names, load_params
from processes import Spell, started
from torch import Tensor

from antiphon.engine import sample_cohort

FRAMEWORKS = Path(__file__).parent / "frameworks"
BARE, STACKED, FLOWER = "bare loop", "antiphon, stacked", "Flower"
SESSIONS = 5
TOLERANCE = 1e-4  # of the loss: float32 sums in another order
NUM_FRAMES, NUM_TOKENS = 30, 5  # of a ctc sample


# --- The work --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """How much is done: turns of so many rounds each, the first of them to warm up."""

    turns: int
    turn: int
    num_clients: int = 100
    num_samples: int = 50
    cohort: int = 20


SIZES = {"ctc": Size(turns=6, turn=1), "mlp": Size(turns=9, turn=5), "noop": Size(turns=6, turn=1)}
QUICK = Size(turns=2, turn=2, num_clients=4, num_samples=20, cohort=2)


def make_workload(name: str, size: Size) -> Workload:
    """Learnable noise: every class, or token, has a pattern of its own."""
    torch.manual_seed(SEED)
    params = {key: value.clone() for key, value in MODELS[name]().state_dict().items()}
    clients, rounds = client_names(size.num_clients), range(size.turns * size.turn)
    cohorts = [[int(name) for name in sample_cohort(clients, size.cohort, SEED, round)] for round in rounds]
    lr, epochs, make_data = RECIPES[name]
    data = make_data(size.num_clients, size.num_samples)
    return Workload(name, lr, epochs, size.turn, cohorts, data, params)


def ctc_data(num_clients: int, num_samples: int) -> tuple[Tensor, ...]:
    tokens = torch.randint(1, Ctc.num_tokens, (num_clients, num_samples, NUM_TOKENS))
    patterns = torch.randn(Ctc.num_tokens, Ctc.num_features)
    frames = patterns[tokens].repeat_interleave(NUM_FRAMES // NUM_TOKENS, dim=2)
    return frames + torch.randn_like(frames), tokens


def mlp_data(num_clients: int, num_samples: int) -> tuple[Tensor, ...]:
    labels = torch.randint(0, Mlp.num_classes, (num_clients, num_samples))
    patterns = torch.randn(Mlp.num_classes, Mlp.num_features)
    return 0.1 * patterns[labels] + torch.randn(*labels.shape, Mlp.num_features), labels


def noop_data(num_clients: int, num_samples: int) -> tuple[Tensor, ...]:
    return (torch.randn(num_clients, num_samples, Wide.num_features),)


RECIPES = {"ctc": (0.05, 1, ctc_data), "mlp": (0.05, 1, mlp_data), "noop": (0.0, 0, noop_data)}


# --- Running it ------------------------------------------------------------------------------------


def commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """What starts each framework; the others are compared with the bare loop."""
    ours = [sys.executable, "with_antiphon.py"]
    found = {
        BARE: [sys.executable, "bare.py"],
        "bare loop, 2 processes": [sys.executable, "bare.py", "--processes", "2"],
        "antiphon": ours,
        "antiphon, saving every round": [*ours, "--save-every", "1"],
        "antiphon, 2 processes": [*ours, "--workers", "2"],
        "antiphon, 2 processes, by gloo": [*ours, "--workers", "2", "--gloo"],
        STACKED: [*ours, "--stacked"],
        STACKED + ", 2 processes": [*ours, "--stacked", "--workers", "2"],
    }
    for name, script, python in (
        ("pfl-research", "with_pfl.py", arguments.pfl),
        (FLOWER, "with_flower.py", arguments.flower),
    ):
        if python:
            found[name] = [python, script]
        else:
            print(f"{name} is left out: no interpreter for it was given (see --help)")
    return found


@dataclass(frozen=True)
class Played:
    """What one framework took in a session, the first turn left out, and the bare loop in the same turns."""

    spells: list[Spell]
    bare: list[Spell]
    loss: float
    versions: dict[str, str]


def play(workload: Workload, folder: Path, frameworks: Mapping[str, list[str]]) -> dict[str, Played]:
    """One session: every framework does the workload, in turns, the first to go rotating."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    with ExitStack() as stack:
        players = {
            name: stack.enter_context(
                started([python, str(FRAMEWORKS / script), str(folder), *options], environment)
            )
            for name, (python, script, *options) in frameworks.items()
        }
        for player in players.values():
            player.ready()
        names = list(players)
        spells: dict[str, list[Spell]] = {name: [] for name in names}
        for turn in range(len(workload.cohorts) // workload.turn):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                spells[name].append(players[name].turn())
        found = {}
        for name, player in players.items():
            player.finish()
            versions = json.loads((player.folder / "versions.json").read_text())
            loss = workload.loss(load_params(player.folder / "params.npz"))
            found[name] = Played(spells[name][1:], spells[BARE][1:], loss, versions)
    check_agreement(workload, found)
    return found


def check_agreement(workload: Workload, session: Mapping[str, Played]) -> None:
    expected = session[BARE].loss
    for name, played in session.items():
        if not abs(played.loss / expected - 1) < TOLERANCE:
            raise SystemExit(
                f"{workload.name}: {name} ended at loss {played.loss}, the bare loop at {expected}: "
                "they did not do the same work"
            )


def measure(
    workload: Workload, folder: Path, frameworks: Mapping[str, list[str]], num_sessions: int
) -> dict[str, Any]:
    """All frameworks in as many sessions; of each, the medians over them."""
    workload.save(folder)
    together = {name: command for name, command in frameworks.items() if name != FLOWER}
    if workload.name != "mlp":  # no batching rule for an LSTM, nothing to stack without training
        together = {name: command for name, command in together.items() if "--stacked" not in command}
    groups = [together]
    if FLOWER in frameworks:
        groups.append({name: frameworks[name] for name in (BARE, FLOWER)})
    sessions: dict[str, list[Played]] = {}
    for _ in range(num_sessions):
        for group in groups:
            for name, played in play(workload, folder, group).items():
                sessions.setdefault(name, []).append(played)
    return {
        "num_parameters": sum(tensor.numel() for tensor in workload.params.values()),
        "rounds": len(workload.cohorts),
        "rounds_a_turn": workload.turn,
        "start_loss": workload.loss(workload.params),
        "frameworks": {name: figures(played, workload.turn) for name, played in sessions.items()},
    }


def figures(sessions: Sequence[Played], turn: int) -> dict[str, Any]:
    """Seconds a round, and over the bare loop's of the same turn: medians over turns, then over sessions."""
    found: dict[str, Any] = {"versions": sessions[0].versions, "loss": sessions[0].loss}
    for clock in ("cpu", "wall"):
        seconds, ratios = [], []
        for played in sessions:
            ours, bare = ([getattr(spell, clock) for spell in who] for who in (played.spells, played.bare))
            seconds.append(statistics.median(ours) / turn)
            ratios.append(statistics.median(a / b for a, b in zip(ours, bare, strict=True)))
        found[clock] = {
            "seconds": statistics.median(seconds),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
        }
    return found


# --- Telling it ------------------------------------------------------------------------------------


def main() -> None:
    parser = argument_parser(__doc__, "peers")
    parser.add_argument("--pfl", metavar="PYTHON", help="interpreter that has pfl and torch")
    parser.add_argument("--flower", metavar="PYTHON", help="interpreter that has flwr[simulation] and torch")
    parser.add_argument("--only", choices=sorted(MODELS), help="one workload instead of all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    num_sessions = 1 if arguments.quick else SESSIONS
    frameworks, results = commands(arguments), {}
    with tempfile.TemporaryDirectory() as folder:
        for name in [arguments.only] if arguments.only else MODELS:
            workload = make_workload(name, QUICK if arguments.quick else SIZES[name])
            results[name] = measure(workload, Path(folder) / name, frameworks, num_sessions)
            print_workload(name, results[name])
    print(f"the losses at the end agree to {TOLERANCE:.0e} of themselves")
    options = [f"--{peer} PYTHON" for peer in ("pfl", "flower") if getattr(arguments, peer)]
    options += ["--only", arguments.only] if arguments.only else []
    found = {"threads": 1, "sessions": num_sessions, "tolerance": TOLERANCE, "workloads": results}
    write_result(arguments, found, *options)


def print_workload(name: str, result: Mapping[str, Any]) -> None:
    rows = []
    for framework, found in result["frameworks"].items():
        clocks = [found[clock] for clock in ("cpu", "wall")]
        cells = [cell for each in clocks for cell in (f"{each['seconds']:.4f}", f"{each['ratio']:.3f}")]
        rows.append([framework, *cells, f"{result['start_loss']:.5f} → {found['loss']:.5f}"])
    print_table([name, "processor s a round", "over bare", "wall s a round", "over bare", "loss"], rows)


if __name__ == "__main__":
    main()
