"""Make the model of a finished run smaller, or show what would be left of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphon.experiment.runner import Scores, run_experiment
from antiphon.workflows.progress import Progress, no_progress, screen_for
from antiphon.workflows.pruning_plan import Plan, plan, pruned_experiment


def prune(
    run: str | Path,
    out: str | Path,
    *,
    sparsity: float = 0.5,
    rounds: int = 40,
    settings: Sequence[str] = (),
    data: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    feature_processes: int = 1,
    progress: Progress = no_progress,
) -> dict[str, Scores]:
    """Make a run's model smaller by Federated Pruning; the new run is `out`/pruned.

    Args:
        run: The folder of a finished run, such as out/dga.
        out: The folder for the pruned run and its report.
        sparsity: The share of each matrix's rows or columns to remove.
        rounds: The number of rounds: half of them find the mask, half fine-tune.
        settings: Changes to the settings of the pruning, each written as `path=value`.
        data: A corpus folder; by default the corpus that the run was trained on.
        resume: Continue the run that is in `out`.
        device: cpu, cuda, or auto (the GPU if there is one).
        feature_processes: The number of processes that compute features. More than one needs
            `if __name__ == "__main__":` in a script.
        progress: A function that is called with (stage, steps done, number of steps).

    Returns:
        The scores of the pruned run on the test speakers, by the name of the run.

    Example:
        scores = antiphon.prune("out/dga", "small", sparsity=0.3, rounds=20)
    """
    experiment, corpus = pruned_experiment(Path(run), sparsity, rounds, settings)
    screen = screen_for(progress)
    return run_experiment(experiment, data or corpus, out, resume, False, device, feature_processes, screen)


def plan_pruning(model: str | Path, *, sparsity: float = 0.5, settings: Sequence[str] = ()) -> Plan:
    """Return what would be left of each weight of a model; nothing is trained.

    Args:
        model: The folder of a finished run, or the name of a preset such as las-small.
        sparsity: The share of each matrix's rows or columns to remove.
        settings: Changes to the settings of the pruning, each written as `path=value`.

    Example:
        plan = antiphon.plan_pruning("las-small", sparsity=0.5)
        print(plan.zero_ratio, plan.bytes_after)
    """
    return plan(str(model), sparsity, settings)
