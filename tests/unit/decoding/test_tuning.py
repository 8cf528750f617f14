from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.decoding.fusion import Fusion
from antiphon.decoding.tuning import FusionSearch, pattern_search
from antiphon.models.kneser_ney import estimate

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


def test_fusion_weights_with_the_fewest_errors_are_found_and_none_is_negative():
    fusion = Fusion(estimate(["a b", "b a"], order=2))
    search = FusionSearch(weight=0.75, word_bonus=1.0, weight_step=0.5, bonus_step=1.0, halvings=1)
    seen = []

    def count_errors(tried: Fusion) -> int:
        seen.append(tried.weight)
        return round(100 * abs(tried.weight + 1.0) + 10 * abs(tried.word_bonus - 2.5))

    found = search.run(fusion, count_errors)
    assert found.model is fusion.model
    assert (found.weight, found.word_bonus) == (0.0, 2.5)
    assert min(seen) >= 0
