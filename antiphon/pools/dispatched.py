"""Several processes of unequal speed: each takes the next group of clients when it is free.

D. Dimitriadis et al., "A Federated Approach in Training Acoustic Models" (FTL), Interspeech 2020, §2, hands
work to idle workers in the same way. Here the groups of a cohort, and the order in which their sums are
added, depend on the cohort and the number of processes, not on who was free. So a run has the same bits every
time, and after a resume.

A cohort is cut into a few groups for each process, of about equal seconds of audio. A group is summed where
it was trained, and its sum is sent to all. An `ordered` pool has groups of one client and adds them in cohort
order: the bits of a single process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon.core import RunningMean, Task, Update, Weigh, add_up
from antiphon.pools.distributed import (
    Answers,
    DistributedPool,
    DistributedUpdates,
    layout_of,
    note_of,
    share_out,
)

GROUPS = 4  # for each process: more end closer together, fewer are better filled and send less


@dataclass(frozen=True)
class DispatchedPool:
    """Hands groups of a cohort to the workers of all processes, one after another."""

    shares: DistributedPool
    # Yields the numbers below a limit that no other process of the group gets.
    take: Callable[[int], Iterator[int]]

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        groups = self._groups(cohort)
        sums: dict[int, Update] = {}  # number of a group -> its sum, if this process trained it

        def train() -> dict[str, Any]:
            notes = []
            for number in self.take(len(groups)):
                total = RunningMean()
                for position, update in self.shares.train(task, cohort, groups[number]):
                    weighted = update.weighted_by(weigh)
                    notes.append(note_of(position, weighted))
                    total.add(weighted)
                sums[number] = total.total()
            return {"notes": notes, "layout": layout_of(sums.values())}

        answers = self.shares.gather(train, len(cohort))
        order = range(len(groups)) if not self.shares.ordered else _by_position(groups)
        folded = self.shares.fold(
            Answers(
                tuple(add_up(answers.updates[p] for p in groups[number]) for number in order),
                tuple(answers.owners[groups[number][0]] for number in order),
                answers.layout,
            ),
            {place: sums[number] for place, number in enumerate(order) if number in sums},
        )
        return replace(answers.total, mean=folded.mean, log_weight=folded.log_weight)

    def collect(self, task: Task, cohort: Sequence[str]) -> DistributedUpdates:
        """Keep updates where they were trained; they are always combined in cohort order."""
        groups = self._groups(cohort)
        updates: dict[int, Update] = {}

        def train() -> dict[str, Any]:
            for number in self.take(len(groups)):
                updates.update(self.shares.train(task, cohort, groups[number]))
            notes = [note_of(position, update) for position, update in updates.items()]
            return {"notes": notes, "layout": layout_of(updates.values())}

        ordered = replace(self.shares, ordered=True)
        return DistributedUpdates(ordered, self.shares.gather(train, len(cohort)), updates)

    def _groups(self, cohort: Sequence[str]) -> list[list[int]]:
        """Return positions of the cohort in groups, those with the most seconds first."""
        seconds = [self.shares.seconds(client) for client in cohort]
        count = len(cohort) if self.shares.ordered else min(len(cohort), GROUPS * self.shares.group.size)
        groups = [group for group in share_out(seconds, count) if group] if count else []
        return sorted(groups, key=lambda group: (-sum(seconds[p] for p in group), group))


def _by_position(groups: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers of groups of one client in cohort order."""
    return sorted(range(len(groups)), key=lambda number: groups[number][0])
