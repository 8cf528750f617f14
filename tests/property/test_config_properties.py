from __future__ import annotations

import json
from dataclasses import dataclass

import yaml
from hypothesis import given
from hypothesis import strategies as st

from antiphon.config import from_dict, override, to_dict
from antiphon.server.optimizers import Adagrad, Adam, Lamb, Lars, ServerOptimizer, Sgd, Yogi
from antiphon.server.schedules import Constant, Cosine, InverseSqrt, Linear, Schedule, Step
from antiphon.server.weighting import ByExamples, ByNorm, SoftmaxLoss, Uniform, Weighting

whole = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=1e-12, max_value=1e6)
fraction = st.floats(min_value=0, max_value=0.999)
text = st.text(max_size=12)


@dataclass(frozen=True)
class Some:
    name: str
    note: str | None
    number: float
    count: int
    flag: bool
    names: tuple[str, ...]
    server: ServerOptimizer
    weighting: Weighting
    schedule: Schedule | None


servers = st.one_of(
    st.builds(Sgd, positive, fraction),
    st.builds(Adam, positive, fraction, fraction, positive),
    st.builds(Yogi, positive, fraction, fraction, positive),
    st.builds(Adagrad, positive, positive),
    st.builds(Lamb, positive, fraction, fraction, positive, positive),
    st.builds(Lars, positive, fraction, positive, positive),
)
weightings = st.one_of(
    st.just(Uniform()), st.just(ByExamples()), st.builds(SoftmaxLoss, finite), st.builds(ByNorm, finite)
)
schedules = st.one_of(
    st.just(Constant()),
    st.builds(Cosine, st.integers(10, 99), finite, st.integers(0, 9)),
    st.builds(Linear, st.integers(10, 99), finite, st.integers(0, 9)),
    st.builds(Step, st.integers(1, 99), finite),
    st.builds(InverseSqrt, st.integers(1, 99)),
)
configs = st.builds(
    Some,
    text,
    st.none() | text,
    finite,
    whole,
    st.booleans(),
    st.lists(text, max_size=3).map(tuple),
    servers,
    weightings,
    st.none() | schedules,
)


@given(configs)
def test_any_configuration_comes_back_from_dict_json_and_yaml(config):
    written = to_dict(config)
    assert from_dict(Some, written) == config
    assert from_dict(Some, json.loads(json.dumps(written))) == config
    assert from_dict(Some, yaml.safe_load(yaml.safe_dump(written))) == config


@given(configs, finite, whole, st.booleans())
def test_any_number_can_be_set_as_python_writes_it(config, number, count, flag):
    changed = override(config, [f"number={number!r}", f"count={count}", f"flag={str(flag).lower()}"])
    assert (changed.number, changed.count, changed.flag) == (number, count, flag)


@given(configs)
def test_no_assignments_change_nothing(config):
    assert override(config, []) == config
