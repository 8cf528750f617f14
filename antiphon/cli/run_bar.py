"""The progress bar of one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.progress import Progress

from antiphon.records.writer import Listener


class RunBar(Listener):
    """The progress bar of one run: rounds, loss, validation WER, number of answers, in all or by site."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self.progress, self.task = progress, progress.add_task(name, total=total, note="")
        self.figures = self.valid = self.sites = ""
        self.answered = 0

    def resumed(self, round: int) -> None:
        self.progress.update(self.task, completed=round, note=f"resumed after round {round}")

    def replied(self, client: str) -> None:
        self.answered += 1
        self._show(f"[dim]{self.sites or f'{self.answered} answered'}[/]")

    def at_sites(self, sites: Mapping[str, tuple[int, int]]) -> None:
        self.sites = progress_of_sites(sites)
        self._show(f"[dim]{self.sites}[/]")

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        self.answered, self.sites = 0, ""
        if "loss" in entry:
            self.figures = f"loss {entry['loss']:.3f}"
        if "valid" in entry:
            self.valid = f"valid WER {100 * entry['valid']['wer']:.1f} %"
        for client, reason in entry.get("failures", {}).items():
            left_out = f"round {entry['round']}: left out {client}: {reason}"
            self.progress.console.print(f"  [yellow]{escape(left_out)}[/]")
        self.progress.update(self.task, completed=entry["round"])
        self._show("")

    def _show(self, note: str) -> None:
        self.progress.update(self.task, note="  ".join(filter(None, (self.figures, self.valid, note))))


def progress_of_sites(sites: Mapping[str, tuple[int, int]], most: int = 6) -> str:
    """Return how far each site is; of many sites, those that still work.

    >>> progress_of_sites({"berlin": (2, 2), "oslo": (0, 3)})
    'berlin 2/2, oslo 0/3'
    >>> progress_of_sites({"berlin": (2, 2), "oslo": (0, 3), "quito": (1, 2)}, most=2)
    'oslo 0/3, quito 1/2, 1 of 3 sites done'
    """
    shown = [f"{site} {done}/{asked}" for site, (done, asked) in sites.items()]
    if len(shown) <= most:
        return ", ".join(shown)
    at_work = [f"{site} {done}/{asked}" for site, (done, asked) in sites.items() if done < asked]
    more = [f"{len(at_work) - most} more"] if len(at_work) > most else []
    return ", ".join([*at_work[:most], *more, f"{len(sites) - len(at_work)} of {len(sites)} sites done"])
