"""Weights & Biases: a listener that sends the numbers of runs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.records.listener import Listen, RunInfo, client_scalars, error_rates, numbers_of_run
from antiphon.records.writer import Listener, scalars_of

# By default the package also sends the terminal's output, the code, the git remote, the names of the machine
# and of installed packages.
NOTHING_ELSE = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "host": "-",
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


def wandb_listener(project: str, *, clients: bool = False, options: Mapping[str, Any] = {}) -> Listen:
    """Return a listener for `antiphon.run` that sends the numbers of each round to Weights & Biases.

    Each run of the experiment becomes a run there. Only numbers are sent, and the names of the run and the
    recipe: the scalars of TensorBoard, the seed, the numbers among the settings of the algorithm and the
    rounds, and the error rates at the end. The package wandb is needed: pip install 'antiphon[wandb]'.

    Args:
        project: The name of the project there.
        clients: Also send the numbers of each client, with its name.
        options: More arguments of `wandb.init`, such as {"mode": "offline"}.

    Example:
        sink = antiphon.wandb_listener("speech", options={"mode": "offline"})
        antiphon.run("dga", data="speech", out="out", listeners=[sink])
    """
    try:
        import wandb
    except ImportError as error:
        raise ValueError(f"no package wandb ({error}): pip install 'antiphon[wandb]'") from None

    def listen(run: RunInfo) -> Listener:
        arguments = {
            "project": project,
            "name": run.name,
            "group": run.recipe,
            "config": numbers_of_run(run),
            "reinit": "create_new",
            "settings": wandb.Settings(**NOTHING_ELSE),
            **options,
        }
        return _WandbRun(wandb.init(**arguments), clients)

    return listen


@dataclass(frozen=True)
class _WandbRun(Listener):
    run: Any
    clients: bool

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        scalars = {**scalars_of(entry, clock), **(client_scalars(entry) if self.clients else {})}
        self.run.log(scalars, step=entry["round"])

    def ended(self, scores: Mapping[str, Any] | None) -> None:
        if scores is not None:
            self.run.summary.update(error_rates(scores))
        self.run.finish(exit_code=0 if scores is not None else 1)
