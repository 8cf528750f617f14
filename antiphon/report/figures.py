"""The figures of the page with their captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from antiphon.report import plots, speaker_plots, tables
from antiphon.report.drawing import look
from antiphon.report.run_folder import RunFolder
from antiphon.report.simulated_time import has_clock, has_energy
from antiphon.scoring.statistics import plural, worst_decile


@dataclass(frozen=True)
class Figure:
    """A drawing and its caption."""

    svg: Markup
    caption: str = ""
    wide: bool = False


def of_results(rows: Sequence[tables.Result]) -> list[Figure]:
    """Return error rates of several models with intervals, and their distribution over speakers."""
    looks = [look(row.run.position) if row.run else speaker_plots.START for row in rows]
    pairs = list(zip(rows, looks, strict=True))
    marks = [(row.label, row.evaluation.overall.words.rate, row.wer, style) for row, style in pairs]
    lines = [(rates, style) for row, style in pairs if (rates := tables.word_rates(row.evaluation))]
    bars = "Bars: 95 % intervals over speakers. Bars that overlap may still differ: see the paired columns."
    left = "Further left is better."
    if num_starts := sum(row.run is None for row in rows):
        left += f" Grey and dashed: the starting model{'s' if num_starts > 1 else ''}."
    return [Figure(speaker_plots.forest(marks), bars), Figure(speaker_plots.distribution(lines), left)]


def of_curves(runs: Sequence[RunFolder]) -> list[Figure]:
    """Return validation curves and the training loss by round, if they were measured."""
    figures = [
        Figure(plots.validation_curves(runs, name, title, is_rate))
        for name, title, is_rate in (
            ("wer", "Validation WER", True),
            ("cer", "Validation CER", True),
            ("loss", "Validation loss", False),
        )
        if any(name in run.validation for run in runs)
    ]
    if any(run.trained for run in runs):
        figures.append(Figure(plots.training_loss(runs)))
    return figures


def of_speakers(run: RunFolder, split: str) -> list[Figure]:
    """Return WER by speaker: a row each if they are few, else dots and the worst as rows.

    A run that started from a model has WER before and after.
    """
    pair = tables.before_and_after(run, split)
    before, after = (tables.word_rates(evaluation) for evaluation in pair) if pair else ({}, {})
    after = {name: rate for name, rate in after.items() if name in before}
    if not after and (best := run.evaluations.get(split, {}).get(tables.BEST)):
        before, after = {}, tables.word_rates(best)
    names = sorted(after, key=lambda name: (-after[name], name))
    if not names:
        return []
    if len(names) <= speaker_plots.MAX_NAMES:
        title = "WER before and after, by speaker" if before else "WER by speaker"
        svg = speaker_plots.dumbbells(before, after, names, title, wide=True)
        return [Figure(svg, "Worst after training first; the worst decile is tinted and in bold.", True)]
    shown = worst_decile(after)[: speaker_plots.MAX_NAMES // 2]
    title = f"The {plural(len(shown), 'worst speaker')}"
    if not before:
        return [Figure(speaker_plots.dumbbells(before, after, shown, title, wide=True), wide=True)]
    return [
        Figure(speaker_plots.scatter(before, after), "Each dot is a speaker; below the line is better."),
        Figure(speaker_plots.dumbbells(before, after, shown, title, wide=False), "Ring: before. Dot: after."),
    ]


def of_weights(run: RunFolder) -> list[Figure]:
    """Return the weights of one run, if clients answered."""
    num_clients = len({name for entry in run.trained for name in entry.get("clients", {})})
    if num_clients == 0:
        return []
    caption = "1× is an equal share of the round."
    if tables.has_equal_weights(run):
        caption = "All clients of a round had the same weight."
        if num_clients > speaker_plots.MAX_LINES:
            caption += " Grey: drawn, with an answer. White: not drawn, or no answer."
    elif num_clients > speaker_plots.MAX_LINES:
        caption = f"Heaviest on average first. White: not drawn, or no answer. {caption}"
    figures = [Figure(speaker_plots.weights_over_rounds(run), caption, wide=True)]
    if not tables.weights_by_kind(run):
        return figures
    caption = f"{len(run.corrupted)} of {run.num_clients} clients were corrupted; a star marks them below."
    return [Figure(speaker_plots.clean_and_corrupted(run), caption, wide=True), *figures]


def of_costs(runs: Sequence[RunFolder]) -> list[Figure]:
    """Return traffic, time and memory, if they were measured."""
    figures = []
    if any(run.total_bytes for run in runs):
        figures.append(Figure(plots.bytes_by_round(runs), "As if every client were on a machine of its own."))
        if any("wer" in run.validation for run in runs):
            figures.append(Figure(plots.error_by_bytes(runs), "What an error rate costs in traffic."))
    if timed := [run for run in runs if has_clock(run)]:
        caption = "Time of simulated clients: computing, sending, receiving and waiting."
        figures.append(Figure(plots.error_by_time(timed), caption))
    if measured := [run for run in runs if has_energy(run)]:
        caption = "Energy of simulated clients: computing, sending and receiving."
        figures.append(Figure(plots.error_by_energy(measured), caption))
    if any(run.clock for run in runs):
        figures += [Figure(plots.seconds_by_round(runs)), Figure(plots.memory_by_round(runs))]
    return figures
