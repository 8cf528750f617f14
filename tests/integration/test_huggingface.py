"""From a folder in Hugging Face format to a recogniser of one's own: federated, in full and by LoRA."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_folders import transformers, write_folder
from world import LOCAL, World, tones

from antiphon import config
from antiphon.algorithms.fedavg import fedavg
from antiphon.core import size_in_bytes
from antiphon.data.huggingface_folder import HuggingFaceFeatures, HuggingFaceTokensConfig
from antiphon.data.tokens import CharactersConfig
from antiphon.engine import Rounds
from antiphon.experiment import runner
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.models.huggingface.lora import LoraAdapter
from antiphon.models.huggingface.speech_models import HuggingFaceConfig
from antiphon.models.noise import SpecAugment
from antiphon.recognizer import Recognizer
from antiphon.records.journal import read

COHORT = 3
TIME_MASKS = SpecAugment(num_time_masks=1, time_width=3, num_frequency_masks=0)


@pytest.fixture(autouse=True)
def any_algorithms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runner, "write_report", lambda *arguments: None)
    yield
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process


def experiment(folder: Path, capitals: bool, **settings: Any) -> Experiment:
    run = Run(fedavg(LOCAL), start_run="", rounds=Rounds(total=1, cohort=COHORT, valid_every=0))
    return Experiment(
        frontend=HuggingFaceFeatures(str(folder)),
        tokens=HuggingFaceTokensConfig(str(folder), capitals=capitals),
        model=HuggingFaceConfig(str(folder), **settings),
        augment=TIME_MASKS,
        speakers=Speakers(seed_fraction=0.0),
        runs={"fedavg": run},
    )


@pytest.mark.parametrize("name", ["wav2vec2", "whisper"])
@pytest.mark.parametrize("lora", [None, LoraAdapter(rank=2)], ids=["full", "lora"])
def test_a_round_from_a_folder_gives_a_recogniser_that_needs_the_folder_no_more(
    world: World, name: str, lora: LoraAdapter | None, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "folder", name)
    chosen = experiment(folder, capitals=name == "wav2vec2", lora=lora)
    assert config.from_dict(Experiment, config.to_dict(chosen)) == chosen
    scores = runner.run_experiment(chosen, world.corpus, tmp_path / "out", device="cpu")
    assert scores["fedavg"]["words"]["length"] > 0
    prepared = runner.prepare(chosen, world.corpus, "cpu")
    traffic = COHORT * size_in_bytes(prepared.fresh["fedavg"])
    entry = read(tmp_path / "out" / "fedavg" / "journal.jsonl")[-1]
    assert entry["bytes_up"] == traffic
    assert 0 < entry["bytes_down"] - traffic < COHORT * 300  # the settings of the tasks

    # Frozen parameters are those of the folder to the last bit; B moves from zero, A needs a second step.
    saved = load_file(tmp_path / "out" / "fedavg" / "model" / "model.safetensors")
    before = dict(prepared.recognizer("fedavg").model.named_parameters())
    assert saved.keys() == before.keys()
    assert (len(prepared.fresh["fedavg"]) < len(before)) == (lora is not None or name == "whisper")
    moved = {key for key, tensor in saved.items() if not torch.equal(tensor, before[key])}
    assert moved
    assert moved <= prepared.fresh["fedavg"].keys()
    assert moved >= {key for key in prepared.fresh["fedavg"] if ".lora_B." in key}

    # What was saved says the same as the run did, wherever it lies, when the folder has gone.
    shutil.rmtree(folder)
    shutil.move(tmp_path / "out" / "fedavg" / "model", tmp_path / "elsewhere")
    first = Recognizer.load(tmp_path / "elsewhere")
    samples = tones("abc de", 1.0, np.random.default_rng(0)).astype(np.float32) / 32768
    text = first.transcribe(samples)
    first.save(tmp_path / "again")
    assert Recognizer.load(tmp_path / "again").transcribe(samples) == text
    assert all(
        torch.equal(left, right)
        for left, right in zip(
            saved.values(), load_file(tmp_path / "again" / "model.safetensors").values(), strict=True
        )
    )


def test_frozen_weights_that_no_file_holds_are_drawn_the_same_every_time(
    world: World, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "folder", "wav2vec2")
    (folder / "model.safetensors").unlink()
    chosen = experiment(folder, capitals=True, lora=LoraAdapter(rank=2))
    prepared = runner.prepare(chosen, world.corpus, "cpu")
    first, second = (dict(prepared.recognizer("fedavg").model.named_parameters()) for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(first[key], tensor) for key, tensor in prepared.fresh["fedavg"].items())


def test_tokens_of_one_s_own_take_a_fresh_output_layer(world: World, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", "wav2vec2")
    chosen = experiment(folder, capitals=True)
    with pytest.raises(ValueError, match="either tokens are hugging_face_tokens"):
        config.override(chosen, ["tokens=characters"])
    own = config.override(chosen, ["tokens=characters", "model.fresh_output=true"])
    assert isinstance(own.tokens, CharactersConfig)
    scores = runner.run_experiment(own, world.corpus, tmp_path / "out", device="cpu")
    assert scores["fedavg"]["words"]["length"] > 0


def test_bands_of_frequency_in_a_waveform_are_refused(world: World, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", "wav2vec2")
    chosen = config.override(experiment(folder, capitals=True), ["augment.num_frequency_masks=1"])
    with pytest.raises(ValueError, match=r"set augment\.num_frequency_masks=0"):
        runner.prepare(chosen, world.corpus, "cpu")


def test_a_saved_recogniser_hears_what_transformers_hears(world: World, tmp_path: Path) -> None:
    """From samples to text on both sides, through no code of ours on the other one."""
    folder = write_folder(tmp_path / "folder", "wav2vec2")
    recognizer = runner.prepare(experiment(folder, capitals=True), world.corpus, "cpu").recognizer("fedavg")
    network = transformers.AutoModelForCTC.from_pretrained(folder).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for number in range(4):
        generator = np.random.default_rng(number)
        samples = generator.standard_normal(320 * (20 + number)).astype(np.float32)
        values = extractor(samples, sampling_rate=16000, return_tensors="pt").input_values
        with torch.no_grad():
            path = network(values).logits.argmax(dim=-1)[0]
        expected = tokenizer.decode(path, skip_special_tokens=False)
        assert recognizer.transcribe(samples).split() == plain(expected).split()


def plain(text: str) -> str:
    """A tokenizer's text as ours: no special tokens, small letters, ⁇ for the unknown."""
    for special in ("<s>", "</s>", "<pad>"):
        text = text.replace(special, "")
    return text.replace("<unk>", "⁇").lower()
