from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.decoding.beams.attention_beam import Penalties
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.tuning import Ranking, RankingSearch, pattern_search
from antiphon.lm.kneser_ney import estimate
from antiphon.models.blstm import BlstmConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.las import LasConfig

coordinates = st.integers(-12, 12).map(lambda quarter: quarter / 4)


@given(target=st.tuples(coordinates, coordinates), start=st.tuples(coordinates, coordinates))
def test_the_bottom_of_a_bowl_is_found_on_the_finest_grid(target, start):
    tried = []

    def cost(point):
        tried.append(point)
        return sum((a - b) ** 2 for a, b in zip(point, target, strict=True))

    assert pattern_search(cost, start, (1.0, 1.0), halvings=2) == target
    assert len(tried) == len(set(tried))


def test_nothing_moves_where_nothing_is_better():
    assert pattern_search(lambda point: 3.0, (0.5, 1.0), (1.0, 1.0), halvings=3) == (0.5, 1.0)


CTC = CtcConfig(BlstmConfig(dim=2, num_layers=1)).build(4, 5)
LAS = LasConfig(BlstmConfig(dim=2, num_layers=1), decoder_dim=2, attention_dim=2).build(4, 5)
WORDS = Fusion(estimate(["a b", "b a"], order=2))
SEARCH = RankingSearch(starts=(0.75, 1.0, 0.25), steps=(0.5, 1.0, 0.25), halvings=1)


@pytest.mark.parametrize("model", [CTC, LAS])
def test_weights_with_the_fewest_errors_are_found_and_none_that_must_not_be_is_negative(model):
    seen = []

    def count_errors(tried: Ranking) -> int:
        seen.append((tried.fusion.weight, tried.penalties.coverage_weight))
        errors = 100 * abs(tried.fusion.weight + 1.0) + 10 * abs(tried.fusion.word_bonus + 2.5)
        return round(errors + 100 * abs(tried.penalties.coverage_weight - 0.5))

    found = SEARCH.run(model, Ranking(WORDS, Penalties(bonus=0.5)), count_errors)
    assert found.fusion.model is WORDS.model
    assert (found.fusion.weight, found.fusion.word_bonus) == (0.0, -2.5)
    assert found.penalties == Penalties(bonus=0.5, coverage_weight=0.5 if model is LAS else 0.0)
    assert min(min(pair) for pair in seen) >= 0


def test_what_there_is_no_use_for_is_not_searched_for():
    tried = []
    assert SEARCH.run(CTC, Ranking(), lambda ranking: tried.append(ranking) or 1) == Ranking()
    assert not tried
    found = SEARCH.run(LAS, Ranking(), lambda ranking: round(100 * ranking.penalties.coverage_weight))
    assert found == Ranking()
