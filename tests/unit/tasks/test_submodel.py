"""Small tensors out of large ones, and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core import Task, Update
from antiphon.tasks.submodel import (
    Block,
    Submodel,
    SubmodelEmbedding,
    SubmodelLinear,
    SubmodelPool,
    SubmodelRecurrent,
    SubmodelView,
    expand,
    masked,
    read_units,
    shrink,
    write_units,
)
from antiphon.tasks.views import views_of


def units(*kept: int, of: int) -> str:
    mask = torch.zeros(of, dtype=torch.bool)
    mask[list(kept)] = True
    return write_units(mask)


# A linear layer in two blocks, one whose hidden units are gone, an LSTM of 3 units, an embedding, a bias.
KEPT = Submodel(
    {
        "halves": SubmodelLinear(
            (Block(units(0, 1, of=4), units(0, 2, of=3)), Block(units(2, 3, of=4), units(1, of=3)))
        ),
        "hidden": SubmodelLinear(
            inputs=units(1, of=2),
            outputs=units(0, 3, of=4),
            blocks=(Block(units(1, of=2), units(0, 3, of=4)),),
        ),
        "lstm": SubmodelRecurrent(units(0, 2, of=3), units(1, of=2)),
        "words": SubmodelEmbedding(units(0, 2, of=3)),
    }
)
SHAPES = {
    "halves.weight": (3, 4),
    "halves.bias": (3,),
    "hidden.weight": (4, 2),
    "hidden.bias": (4,),
    "lstm.weight_ih_l0": (12, 2),
    "lstm.weight_hh_l0": (12, 3),
    "lstm.bias_ih_l0": (12,),
    "words.weight": (5, 3),
    "norm.weight": (2,),
}


def large(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(*shape, generator=generator) for name, shape in SHAPES.items()}


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_units_are_read_as_they_were_written(mask: list[bool]) -> None:
    text = write_units(torch.tensor(mask))
    assert read_units(text, len(mask)).tolist() == mask


def test_small_tensors_are_the_rows_and_columns_that_are_kept() -> None:
    params = large()
    small = shrink(params, KEPT)
    w = params["halves.weight"]
    assert torch.equal(small["halves.weights.0"], w[[0, 2]][:, [0, 1]])
    assert torch.equal(small["halves.weights.1"], w[[1]][:, [2, 3]])
    assert torch.equal(small["halves.bias"], params["halves.bias"])
    assert torch.equal(small["hidden.weight"], params["hidden.weight"][[0, 3]][:, [1]])
    assert torch.equal(small["hidden.bias"], params["hidden.bias"][[0, 3]])
    gates = [0, 2, 3, 5, 6, 8, 9, 11]  # units 0 and 2 of the input, forget, cell and output gates
    assert torch.equal(small["lstm.weight_ih_l0"], params["lstm.weight_ih_l0"][gates][:, [1]])
    assert torch.equal(small["lstm.weight_hh_l0"], params["lstm.weight_hh_l0"][gates][:, [0, 2]])
    assert torch.equal(small["lstm.bias_ih_l0"], params["lstm.bias_ih_l0"][gates])
    assert torch.equal(small["words.weight"], params["words.weight"][:, [0, 2]])
    assert small["norm.weight"] is params["norm.weight"]
    assert sum(name.startswith("halves.weight") for name in small) == 2


def test_shrink_undoes_expand_and_expand_touches_nothing_else() -> None:
    params, others = large(0), large(1)
    before = {name: p.clone() for name, p in others.items()}
    small = shrink(params, KEPT)
    grown = expand(small, KEPT, others)
    back = shrink(grown, KEPT)
    assert all(torch.equal(back[name], p) for name, p in small.items())
    mask = masked({name: torch.ones(*shape) for name, shape in SHAPES.items()}, KEPT)
    for name, m in mask.items():
        assert torch.equal(grown[name], torch.where(m == 1, params[name], others[name])), name
        assert torch.equal(others[name], before[name]), name
    zeros = {name: int((m == 0).sum()) for name, m in mask.items()}
    assert zeros["halves.weight"] == 12 - 4 - 2
    assert zeros["halves.bias"] == 0
    assert zeros["hidden.weight"] == 8 - 2


def test_only_some_tensors_can_be_expanded() -> None:
    params = large()
    grown = expand({"hidden.weight": torch.zeros(2, 1)}, KEPT, params)
    assert int((grown["hidden.weight"] == 0).sum()) == 2
    assert all(grown[name] is params[name] for name in params if name != "hidden.weight")


def test_what_is_kept_travels_as_text() -> None:
    assert Submodel.read(KEPT.write()) == KEPT
    assert Submodel().write() == ""
    assert Submodel.read("") == Submodel()
    seen = []

    class Watching:
        def reduce(self, task, cohort, weigh):  # type: ignore[no-untyped-def]
            seen.append(views_of(task))
            return Update.nothing()

    for text in (KEPT.write(), ""):
        SubmodelPool(Watching(), text).reduce(Task("train"), [], lambda report: 0.0)  # type: ignore[arg-type]
    assert seen == [[SubmodelView(KEPT.write())], []]


def test_a_mask_that_does_not_fit_is_refused_by_the_layer_s_name() -> None:
    params = large()
    with pytest.raises(ValueError, match="hidden: the mask is for 5 units, but the model has 4 there"):
        shrink(params, Submodel({"hidden": SubmodelLinear(outputs=units(0, of=5))}))
    with pytest.raises(ValueError, match="elsewhere: the mask is for a layer that the model does not have"):
        Submodel({"elsewhere": SubmodelEmbedding()}).check({"hidden"})
    with pytest.raises(ValueError, match="lstm: the mask is for 4 units, but the model has 3"):
        shrink(params, Submodel({"lstm": SubmodelRecurrent(units(1, of=4))}))
