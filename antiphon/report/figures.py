"""The figures of the page, each with the words under it: which to draw for the runs at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from antiphon.report import attention_plots, plots, speaker_plots, tables, weight_plots
from antiphon.report.attention_summary import Row
from antiphon.report.drawing import Look, look
from antiphon.report.run_folder import RunFolder
from antiphon.report.weights import weights_by_kind
from antiphon.scoring.statistics import plural, worst_decile


@dataclass(frozen=True)
class Figure:
    """A drawing and what to see in it."""

    svg: Markup
    caption: str = ""
    wide: bool = False


def of_results(runs: Sequence[RunFolder], rows: Sequence[tables.Result]) -> list[Figure]:
    """Error rates of several models with intervals, and how they are spread over speakers."""
    looks = [_look_of(row, runs) for row in rows]
    marks = [
        (row.label, row.evaluation.overall.words.rate, row.wer, style)
        for row, style in zip(rows, looks, strict=True)
    ]
    lines = [(tables.word_rates(row.evaluation), style) for row, style in zip(rows, looks, strict=True)]
    caption = (
        "Bars: 95 % intervals over speakers. Bars that overlap may still differ: see the paired columns."
    )
    return [
        Figure(speaker_plots.forest(marks), caption),
        Figure(
            speaker_plots.distribution([line for line in lines if line[0]]),
            "Further left is better. Grey and dashed: the starting model.",
        ),
    ]


def _look_of(row: tables.Result, runs: Sequence[RunFolder]) -> Look:
    labels = [run.label for run in runs]
    return look(labels.index(row.label)) if row.run else speaker_plots.START


def of_curves(runs: Sequence[RunFolder]) -> list[Figure]:
    """Validation figures and training loss by round, whatever was measured."""
    measures = (
        ("wer", "Validation WER", True),
        ("cer", "Validation CER", True),
        ("loss", "Validation loss", False),
    )
    figures = [
        Figure(plots.validation_curves(runs, name, title, is_rate))
        for name, title, is_rate in measures
        if any(name in run.validation for run in runs)
    ]
    if any(run.trained for run in runs):
        figures.append(Figure(plots.training_loss(runs)))
    return figures


def of_speakers(run: RunFolder, split: str) -> list[Figure]:
    """Before and after by speaker: all by name when few, else all as dots and the worst by name."""
    pair = tables.before_and_after(run, split)
    if pair is None:
        return []
    before, after = (tables.word_rates(evaluation) for evaluation in pair)
    after = {name: rate for name, rate in after.items() if name in before}
    ordered = sorted(after, key=lambda name: (-after[name], name))
    if not ordered:
        return []
    if len(ordered) <= speaker_plots.MAX_ROWS:
        svg = speaker_plots.dumbbells(before, after, ordered, "WER before and after, by speaker", wide=True)
        return [Figure(svg, "Worst after training first; the worst decile is tinted and in bold.", True)]
    shown = worst_decile(after)[: speaker_plots.MAX_ROWS // 2]
    svg = speaker_plots.dumbbells(
        before, after, shown, f"The {plural(len(shown), 'worst speaker')}", wide=False
    )
    return [
        Figure(speaker_plots.scatter(before, after), "Each dot is a speaker; below the line is better."),
        Figure(svg, "Ring: before. Dot: after."),
    ]


def of_attention(row: Row) -> list[Figure]:
    """What the best model of a run looks at in a few utterances."""
    caption = (
        "An utterance each of some speakers; dark: the most attention in it; line: the centre of attention. "
        "Tokens are those the model recognised, without their texts."
    )
    return [Figure(attention_plots.attention_maps(row.after.examples), caption, wide=True)]


def of_weights(run: RunFolder) -> list[Figure]:
    """The weights of one run, if clients reported any."""
    num_clients = len({name for entry in run.trained for name in entry.get("clients", {})})
    if num_clients == 0:
        return []
    caption = "1× is an equal share of the round."
    if num_clients > weight_plots.MAX_LINES:
        caption = (
            "Heaviest on average first. White: not drawn, or no answer. 1× is an equal share of the round."
        )
    figures = [Figure(weight_plots.weights_over_rounds(run), caption, wide=True)]
    if not weights_by_kind(run):
        return figures
    caption = f"{len(run.corrupted)} of {run.num_clients} clients were corrupted; a star marks them below."
    return [Figure(weight_plots.clean_and_corrupted(run), caption, wide=True), *figures]


def of_updates(runs: Sequence[RunFolder]) -> list[Figure]:
    """How evenly clients counted and how far they moved."""
    return [
        Figure(plots.effective_clients(runs), "100 %: all clients of a round count the same."),
        Figure(plots.update_norms(runs), "How far clients moved from the model they were sent."),
    ]


def of_coverage(runs: Sequence[RunFolder]) -> Figure:
    return Figure(plots.coverage(runs), "Expected after T rounds: 1 − (1 − N/K)^T.")


def of_costs(runs: Sequence[RunFolder]) -> list[Figure]:
    """Traffic, time and memory, whatever was measured."""
    figures = []
    if any(run.total_bytes for run in runs):
        figures.append(Figure(plots.bytes_by_round(runs), "As if clients were far away."))
        if any("wer" in run.validation for run in runs):
            figures.append(Figure(plots.error_by_bytes(runs), "What an error rate costs in traffic."))
    if any(run.clock for run in runs):
        figures.append(Figure(plots.seconds_by_round(runs)))
        figures.append(Figure(plots.memory_by_round(runs)))
    return figures
