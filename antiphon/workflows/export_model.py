"""Write a finished run's model as ONNX files."""

from __future__ import annotations

from pathlib import Path

from antiphon.exporting.export_folder import Exported, export_run
from antiphon.workflows.arguments import Progress, no_progress


def export(
    run: str | Path,
    out: str | Path,
    *,
    int8: bool = False,
    data: str | Path | None = None,
    split: str = "test",
    progress: Progress = no_progress,
) -> Exported:
    """Write a run's model as ONNX files, with all that is needed to recognise speech with them.

    The folder has the graphs, tokens.txt, the settings of the front end (export.json), a script that
    recognises recordings with numpy and onnxruntime (transcribe.py), and a model card (README.md). Hugging
    Face models are refused.

    Args:
        run: The folder of a finished run, such as out/dga.
        out: The folder to write; it must be new or empty.
        int8: Write quantised copies of the graphs, too: weights of 8 bits.
        data: A corpus to compare the exported model with the run's model on; by default the corpus that the
            run was trained on, if it is still there.
        split: The split of the corpus to compare on. If it is empty, nothing is compared.
        progress: A function that is called with (stage, steps done, number of steps).

    Returns:
        The files, and the errors of the run's model and of the exported models on the split.

    Example:
        exported = antiphon.export("out/dga", "exported", int8=True)
        print([(row.name, row.errors.rate) for row in exported.comparison])
    """
    corpus = Path(data) if data is not None else None
    return export_run(Path(run), Path(out), int8, corpus, split, progress)
