"""Adapters change nothing at first, and are all that is trained and sent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from runtimes import LOCAL, assert_same, double_runtime, tasks, unequal
from safetensors.torch import load_file
from world import FRONTEND, World

import antiphon
from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.algorithms.fedavg import FedAvg, select
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.worker import SpeechWorker
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.experiment.runner import run_experiment
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.models.adapters import AdaptedConfig, Bottleneck, LowRank, is_adapter
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.las import LasConfig
from antiphon.models.transducer import TransducerConfig
from antiphon.recognizer import Blueprint
from antiphon.tasks.local_training import LocalTraining

TINY = ConformerConfig(dim=16, num_layers=2, num_heads=2, kernel_size=3)
FULL = {
    "ctc": CtcConfig(TINY),
    "blstm": CtcConfig(BlstmConfig(dim=8, num_layers=2)),
    "las": LasConfig(BlstmConfig(dim=8, num_layers=1), 8, 1),
    "transducer": TransducerConfig(TINY, 8, joint_dim=8),
}
ADAPTERS = {
    "low rank": LowRank(rank=2, targets=("*output*",)),
    "bottleneck": Bottleneck(size=3),
}


def built(settings, seed: int = 3):
    torch.manual_seed(seed)
    return settings.build(5, 7).double()


@pytest.mark.parametrize("full", FULL.values(), ids=FULL)
@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_a_new_adapter_changes_no_output_and_the_full_model_keeps_its_names(full, adapter, batch_of) -> None:
    plain, adapted = built(full).eval(), built(AdaptedConfig(full, adapter)).eval()
    names = {name for name, _ in plain.named_parameters()}
    more = {name for name, _ in adapted.named_parameters()} - names
    assert more
    assert all(is_adapter(name) for name in more)
    assert not any(is_adapter(name) for name in names)
    batch = batch_of([9, 7], [[1, 2], [3]])
    assert torch.equal(plain.losses(batch), adapted.losses(batch))
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, dict(adapted.named_parameters())[name])


def test_a_low_rank_change_is_that_of_the_merged_matrix(batch_of) -> None:
    adapted = built(AdaptedConfig(FULL["ctc"], LowRank(rank=2, alpha=6.0, targets=("*",)))).eval()
    merged = built(FULL["ctc"]).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if name.endswith("adapter_up"):
                parameter.copy_(torch.randn_like(parameter))
                layer = adapted.get_submodule(name.rpartition(".")[0])
                weight = merged.get_submodule(name.rpartition(".")[0]).weight
                weight += 3.0 * layer.adapter_up @ layer.adapter_down  # α / r = 3
    batch = batch_of([9, 7], [[1, 2], [3]])
    assert torch.allclose(adapted.losses(batch), merged.losses(batch), rtol=1e-10)


def test_a_bottleneck_is_computed_as_published() -> None:
    norm = built(AdaptedConfig(FULL["ctc"], Bottleneck(size=3))).encoder.layers[0].norm
    with torch.no_grad():
        norm.adapter_up.copy_(torch.randn_like(norm.adapter_up))
    values = torch.randn(2, 4, 16, dtype=torch.float64)
    normed = torch.nn.functional.layer_norm(values, (16,), norm.weight, norm.bias)
    hidden = normed @ norm.adapter_down.T + norm.adapter_bias
    expected = normed + (hidden * hidden.sigmoid()) @ norm.adapter_up.T
    assert torch.allclose(norm(values), expected, rtol=1e-12)


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
@pytest.mark.parametrize("name", ["ctc", "blstm"])
def test_stacked_clients_train_adapters_as_alone(world: World, name: str, adapter) -> None:
    runtime, clients = double_runtime(world, AdaptedConfig(FULL[name], adapter)), unequal(world)
    part = select(runtime.base, ["*adapter_*"])
    task = tasks({name: p + 0.01 for name, p in part.items()}, LOCAL)
    alone = list(SpeechWorker(runtime, clients).run(task, list(clients)))
    assert alone[0].mean.keys() == part.keys()
    assert alone[0].reports[0].stats["norm"] > 0
    assert_same(StackedWorker(runtime, clients).run(task, list(clients)), alone, 1e-10)


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_a_run_with_adapters_starts_from_one_without_and_sends_adapters_only(
    world: World, tmp_path: Path, adapter
) -> None:
    rounds, model = Rounds(total=2, cohort=2), CtcConfig(TINY)
    adapting = FedAvg(LOCAL, trainable=("*adapter_*",))
    experiment = Experiment(
        frontend=FRONTEND,
        model=model,
        speakers=Speakers(seed_fraction=0.25),
        runs={
            "seed": Run(Central(LocalTraining(steps=2)), "seed", Iid(1), "", Rounds(total=1, cohort=1)),
            "adapted": Run(adapting, rounds=rounds, model=AdaptedConfig(adapter=adapter)),
            "again": Run(adapting, start_run="adapted", rounds=rounds, model=AdaptedConfig(model, adapter)),
        },
    )
    assert config.from_dict(Experiment, config.to_dict(experiment)) == experiment
    run_experiment(experiment, world.corpus, tmp_path, device="cpu")
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process
    seed, adapted = (
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("seed", "adapted")
    )
    for name, tensor in adapted.items():
        assert is_adapter(name) or torch.equal(tensor, seed[name])
    size = 4 * sum(tensor.numel() for name, tensor in adapted.items() if is_adapter(name))
    rows = [json.loads(line) for line in (tmp_path / "adapted" / "journal.jsonl").read_text().splitlines()]
    assert {row["bytes_up"] for row in rows if row.get("bytes_up")} == {size * 2}
    samples = np.random.default_rng(0).standard_normal(16000, dtype=np.float32) * 0.1
    assert isinstance(antiphon.Recognizer.load(tmp_path / "adapted").transcribe(samples), str)


def test_a_model_with_adapters_starts_from_no_other_model(world: World) -> None:
    other = AdaptedConfig(CtcConfig(replace(TINY, dim=32)))
    runs = {
        "seed": Run(FedAvg(LOCAL), data="seed", start_run=""),
        "adapted": Run(FedAvg(LOCAL), model=other),
    }
    with pytest.raises(ValueError, match="starts from 'seed', which has another model"):
        Experiment(model=CtcConfig(TINY), runs=runs)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="no linear layer matches 'decoder"):
        AdaptedConfig(FULL["ctc"], LowRank(targets=("decoder.*",))).build(5, 7)
    with pytest.raises(ValueError, match="rank of at least 1"):
        LowRank(rank=0)
    with pytest.raises(ValueError, match="size of at least 1"):
        Bottleneck(size=0)
    with pytest.raises(ValueError, match="set full, the model"):
        AdaptedConfig().build(5, 7)
    with pytest.raises(ValueError, match="cannot be pruned"):
        Blueprint(model=AdaptedConfig()).whole_model()
