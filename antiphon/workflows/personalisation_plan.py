"""What a personalisation does, wherever its clients are: vocabulary, second pass, and settings to find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.decoding.nbest import NBest, read_nbest
from antiphon.decoding.rescoring import Column, Lists, tabulate, tune
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.personalisation.federation import Federation, background_of
from antiphon.personalisation.marginal_adaptation import Mixture, Unigram
from antiphon.personalisation.schedule import Schedule
from antiphon.personalisation.trial import Grid, SecondPass, described, search_grid
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.records.listener import Listen
from antiphon.workflows.arguments import Names, Notify, Progress
from antiphon.workflows.rescore_lists import describe_weights, lists_of_splits, make_columns
from antiphon.workflows.train_lm import sentences_of


@dataclass(frozen=True)
class RoundsPlace:
    """Where rounds are kept, which processes share them, and who hears about them."""

    folder: Path
    group: ProcessGroup = SingleProcess()
    listeners: tuple[Listen, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Settings, with the lists and models of this machine.

    own: all lists of this machine; None if it has none. models: paths by name. columns: of the second pass.
    client: what a client is.
    """

    own: Lists | None
    background: Unigram
    models: Mapping[str, Path]
    columns: tuple[Column, ...]
    adapted: str
    client: str
    schedule: Schedule
    depth: int
    grid: Grid
    smoothing: float
    agreement: float
    tune_splits: Names
    earlier_splits: Names

    @property
    def lists(self) -> Lists:
        if self.own is None:
            raise ValueError("this machine has no lists")
        return self.own

    @property
    def earlier(self) -> Sequence[NBest]:
        return lists_of_splits(self.lists, self.earlier_splits).entries if self.earlier_splits else ()

    def federation(self, lists: Lists, name: str, place: RoundsPlace) -> Federation:
        """Return clients in this process."""
        made = Federation.of(lists.entries, self.background, self.client, self.earlier)
        made = replace(made, agreement=self.agreement, listeners=place.listeners)
        return replace(made, folder=place.folder, name=name, group=place.group)

    def check_without_lists(self) -> None:
        """Refuse settings to be found if there are no lists to find them on."""
        if free := [column.name for column in self.columns if column.step]:
            raise ValueError(
                f"the weight of {free[0]!r} is searched on lists with references, and the server has none: "
                f"fix it (--weight {free[0]}=0.5), or give the server lists of its own"
            )
        if self.grid.only(self.smoothing) is None:
            raise ValueError(
                "several values of alpha, beta, lambda or sigma are compared on lists with references, "
                "and the server has none: give one value of each, or give the server lists of its own"
            )


def find_settings(
    plan: Plan, place: RoundsPlace, progress: Progress, notify: Notify, scored: Lists | None = None
) -> tuple[dict[str, float], Mixture]:
    """Return the weights of the second pass and the mixture: the fewest errors on the lists for tuning.

    A grid with one point is used as it is. scored: lists of this machine that are scored with the settings.
    """
    if plan.own is None:
        weights = {column.name: column.weight for column in plan.columns}
    else:
        heldout = lists_of_splits(plan.own, plan.tune_splits)
        weights = tune(heldout, plan.columns)
    mixture = plan.grid.only(plan.smoothing)
    is_searched = mixture is None or any(column.step for column in plan.columns)
    if is_searched and scored is not None and _overlap(heldout, scored):
        notify("warning: settings are found on lists that are scored: error rates are optimistic")
    notify(describe_weights("weights of the second pass", weights))
    if not weights.get(plan.adapted):
        notify(f"warning: {plan.adapted} has no weight: adapting it changes nothing")
    if mixture is None:
        tuning = plan.federation(heldout, "tuning", place)
        options = (plan.schedule, plan.grid, plan.smoothing, partial(progress, "settings"))
        mixture = search_grid(tuning, SecondPass(heldout, weights, plan.adapted), *options)
    notify(f"settings: {described(mixture)}")
    return weights, mixture


def _overlap(one: Lists, other: Lists) -> bool:
    return bool({entry.id for entry in one.entries} & {entry.id for entry in other.entries})


def make_plan(
    nbest: str | Path | None,
    background: Sequence[str | Path],
    dictionary: Sequence[str | Path],
    lm: Mapping[str, str | Path],
    adapt: str,
    weights: Mapping[str, float],
    search: Mapping[str, float],
    client: str,
    schedule: Schedule,
    depth: int,
    grid: Grid,
    *found: Any,
) -> Plan:
    """Read lists, texts and models; the parameters are those of `antiphon.personalize`."""
    if depth < 1:
        raise ValueError(f"--depth (in Python: depth) must be at least 1, not {depth}")
    models = {name: load_sentence_model(path) for name, path in lm.items()}
    adapt = adapt or next(iter(models), "")
    if not adapt:
        raise ValueError("there is nothing to adapt: name a model (--lm) or a part of the lists (--adapt lm)")
    entries = list(read_nbest(Path(nbest), depth)) if nbest is not None else []
    known = [word for text in sentences_of(dictionary) for word in text.split()] if dictionary else None
    unigram = background_of(sentences_of(background), entries, known)
    lists = tabulate(entries, models) if nbest is not None else None
    columns = tuple(make_columns(list(models), weights, search))
    paths = {name: Path(path) for name, path in lm.items()}
    plan = Plan(lists, unigram, paths, columns, adapt, client, schedule, depth, grid, *found)
    if nbest is None:
        plan.check_without_lists()
    return plan
