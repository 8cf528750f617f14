"""The benchmarks run and both their sides do the same work; how fast they are is not a test's business."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import script_in_fork
from tiny_kokoro import write_tiny_kokoro
from world import FRONTEND, MODELS, World

from antiphon.algorithms.afl import Afl
from antiphon.algorithms.central import Central
from antiphon.algorithms.fedavg import hierarchical
from antiphon.algorithms.self_training import SelfTrained
from antiphon.data.encoders import MOONSHINE_TINY, find_installed
from antiphon.data.partition import Iid
from antiphon.data.session_texts import TextRules
from antiphon.data.tokens import Characters
from antiphon.data.tts.spoken_corpus import plan_sayings, speak_corpus
from antiphon.data.tts.synthesiser import draw_voices, find_engines
from antiphon.decoding.nbest import Hypothesis, NBest, write_nbest
from antiphon.engine import Rounds
from antiphon.experiment.runner import run_experiment
from antiphon.experiment.settings import Experiment, Run
from antiphon.lm.arpa import save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.lm.neural_lm import NeuralLm, TransformerLmConfig
from antiphon.recognizer import Blueprint, Recognizer
from antiphon.records.journal import read
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.pseudo_labels import Labelling, Ngram

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROVENANCE = {"benchmark", "command", "date", "versions", "commit", "cores"}


def run_script(name: str, *options: str | Path, out: Path) -> None:
    done = script_in_fork(BENCHMARKS / f"{name}.py", list(map(str, options)), out / f"{name}.log")
    assert done.code == 0, done.output


def run_quickly(name: str, out: Path, *options: str) -> dict[str, Any]:
    run_script(name, *options, "--quick", "--out", out, out=out)
    found = json.loads((out / f"{name}.json").read_text())
    assert found.keys() >= PROVENANCE
    assert found["command"] == " ".join(["python", f"benchmarks/{name}.py", *options, "--quick"])
    return found


def test_engine_and_bare_loop_end_at_the_same_parameters(tmp_path: Path) -> None:
    found = run_quickly("overhead", tmp_path)
    (case,) = found["cases"]
    assert case["difference"] < 1e-3
    for clock in ("wall", "cpu"):
        assert case[clock].keys() == {"ratio", "quartiles", "engine_seconds", "bare_seconds"}


@pytest.mark.slow
def test_a_refused_lie_has_no_effect_and_a_measured_one_none_either(tmp_path: Path) -> None:
    rows = {row["aggregation"]: row for row in run_quickly("lies", tmp_path)["rows"]}
    assert rows["by norm"]["largest claim"] == rows["by norm"]["true report"]
    for name, row in rows.items():
        assert not row["refused"] or row["refused claim"] >= row["true report"], name
    assert rows["by utterances, no limit"]["largest claim"] < 0 < rows["DGA softmax, β 0.3"]["refused claim"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc/self/status")
def test_memory_of_runs_and_of_a_store_is_measured(tmp_path: Path) -> None:
    found = run_quickly("memory", tmp_path)
    assert found.keys() >= {"peak_ratio", "anonymous_ratio", "population_seconds_ratio"}
    assert set(found["cohorts"]) == {"10", "20"}
    assert set(found["populations"]) == {"20", "100"}
    assert found["store"]["num_clients"] == 100


def test_checksums_are_measured_beside_the_same_folders_without_them(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    found = run_quickly("checksums", tmp_path)
    assert found["hashes_mb_per_second"].keys() == {"sha256", "blake2b"}
    assert len(found["rows"]) == 7
    for row in found["rows"]:
        assert row["mib"] > 0
        assert all(step["checked"] >= 0 for step in row["steps"].values())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc/self/status")
def test_all_ways_of_folding_give_the_same_mean(tmp_path: Path) -> None:
    ways = run_quickly("fold", tmp_path)["ways"]
    assert set(ways) == {"in_place", "rebuilt", "stacked"}
    for found in ways.values():
        assert found["checksum"] == pytest.approx(ways["in_place"]["checksum"], rel=1e-4)


def test_secure_sums_are_measured_with_and_without_dropouts(tmp_path: Path) -> None:
    cases = run_quickly("secure_sums", tmp_path)["cases"]
    assert [case["num_dropped"] for case in cases] == [0, 1]
    assert all(1 < case["bytes_up_over_float32"] < 1.1 for case in cases)


def test_codecs_are_measured_on_updates_of_a_conformer(tmp_path: Path) -> None:
    found = run_quickly("compression", tmp_path)
    assert found["bytes"] == 4 * found["parameters"]
    for name, row in found["codecs"].items():
        assert row["bytes"] == pytest.approx(min(row["plain"], row["lzma"]), rel=0.1), name
        assert row["share"] == pytest.approx(row["bytes"] / found["bytes"]), name
    errors = {name: row["error"] for name, row in found["codecs"].items()}
    assert errors["int8"] < errors["int4"] < errors["2 bits"]
    assert errors["top_k 10 %"] < errors["top_k 5 %"] < errors["top_k 1 %"] < 1


def test_one_process_and_two_do_the_same_work_and_more_gpus_take_longer_to_talk(tmp_path: Path) -> None:
    found = run_quickly("scaling", tmp_path)
    (case,) = found["cases"]
    assert case["largest_difference"] < 1e-4
    assert case["ratio"] > 0
    talk = [row["exchange_seconds"] + row["all_reduce_seconds"] for row in found["on_paper"]]
    assert [row["num_gpus"] for row in found["on_paper"]][::2] == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert talk[::2] == sorted(talk[::2])
    for row in found["on_paper"]:
        share = found["assumptions"]["share_seconds"]
        assert row["efficiency"] == pytest.approx(share / row["round_seconds"])


def test_fixed_shares_and_free_groups_do_the_same_work(tmp_path: Path) -> None:
    # Not in a fork: the script starts itself again, twice.
    command = [sys.executable, str(BENCHMARKS / "dispatch.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "dispatch.json").read_text())
    assert found["largest_difference"] < 1e-5
    assert found["ratio"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are measured through /proc")
def test_antiphon_ends_where_the_bare_loop_does_in_one_process_in_two_and_stacked(tmp_path: Path) -> None:
    found = run_quickly("peers", tmp_path, "--only", "mlp")["workloads"]["mlp"]
    ours = ["antiphon", "antiphon, saving every round", "antiphon, 2 processes"]
    ours += ["antiphon, 2 processes, by gloo", "antiphon, stacked", "antiphon, stacked, 2 processes"]
    ways = ["bare loop, 2 processes", *ours]
    assert list(found["frameworks"]) == ["bare loop", *ways]
    losses = [each["loss"] for each in found["frameworks"].values()]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-4)
    assert losses[0] < found["start_loss"] - 0.01


def test_decoding_gives_every_way_its_error_rate(tmp_path: Path, world: World) -> None:
    run, lm = tmp_path / "out" / "run", tmp_path / "books"
    recognizer = Recognizer(Blueprint(FRONTEND, MODELS["ctc"]), world.tokens, world.runtime("ctc").model)
    recognizer.save(run / "model")
    save_ngram(estimate(["ab cd", "abc d", "de a"] * 3, order=2), lm)
    options = [str(run), "--lm", str(lm), "--neural", str(lm), "--data", str(world.corpus), "--width", "4"]
    run_script("decoding", *options, "--quick", "--out", tmp_path, out=tmp_path)
    found = json.loads((tmp_path / "decoding.json").read_text())
    assert found["command"] == (
        "python benchmarks/decoding.py out/run --lm books --neural books --width 4 "
        "--trial-width 16 --trial-seconds 600 --quick"
    )
    (ways,) = found["runs"].values()
    words = [ways[way]["length"] for way in ("greedy", "beam", "ngram", "rescored", "oracle_5")]
    assert len(set(words)) == 1
    assert (
        ways["oracle_20"]["wer"]
        <= ways["oracle_5"]["wer"]
        <= min(ways["ngram"]["wer"], ways["rescored"]["wer"])
    )


def test_fairness_is_that_of_the_scores_of_clients_and_test_speakers(tmp_path: Path, world: World) -> None:
    local, rounds = LocalTraining(lr=0.05, steps=1, batch_seconds=1.5), Rounds(total=1, cohort=2)
    runs = {
        "even": Run(hierarchical(local), start_run="", rounds=rounds, held_out=0.4),
        "agnostic": Run(Afl(local=local), start_run="", rounds=rounds, held_out=0.4),
    }
    folders = [tmp_path / "0", tmp_path / "1"]
    for seed, folder in enumerate(folders):
        chosen = Experiment("tiny", seed=seed, frontend=FRONTEND, model=MODELS["ctc"], runs=runs)  # type: ignore[arg-type]
        run_experiment(chosen, world.corpus, folder, device="cpu")
    run_script("fairness", *folders, "--baseline", "even", "--out", tmp_path, out=tmp_path)
    found = json.loads((tmp_path / "fairness.json").read_text())
    assert {
        split: part["num_speakers"] for split, part in found.items() if split in ("held-out", "test")
    } == {
        "held-out": 4,  # half of the speakers of the pool are the server's
        "test": 2,
    }
    for part in (found["held-out"], found["test"]):
        assert list(part["runs"]) == ["even", "agnostic"]
        for rows in part["runs"].values():
            assert [row["seed"] for row in rows] == [0, 1]
            assert all(row["wer"] <= row["worst_tenth"] <= row["largest"] for row in rows)
    path = folders[1] / "agnostic" / "evaluation" / "test" / "best" / "scores.json"
    words = [one["words"] for one in json.loads(path.read_text())["speakers"].values()]
    wrong = [one["substitutions"] + one["deletions"] + one["insertions"] for one in words]
    rates = [100 * count / one["length"] for count, one in zip(wrong, words, strict=True)]
    assert found["test"]["runs"]["agnostic"][1]["wer"] == pytest.approx(sum(rates) / len(rates))


def test_labels_are_counted_beside_the_transcripts_their_teacher_does_not_get(
    tmp_path: Path, world: World
) -> None:
    local, out = LocalTraining(lr=3e-3, steps=30, batch_seconds=1.5), tmp_path / "out"
    seed = Run(Central(local), "seed", Iid(1), "", Rounds(total=1, cohort=1))
    labels = Labelling(num_hypotheses=1, width=4, lm=Ngram(order=2))
    taught = Run(SelfTrained(labels=labels), rounds=Rounds(total=1, cohort=2), labelled=0.0)
    chosen = Experiment("tiny", frontend=FRONTEND, model=MODELS["ctc"], runs={"seed": seed, "taught": taught})  # type: ignore[arg-type]
    run_experiment(chosen, world.corpus, out, device="cpu", only=["seed"])
    options = [str(out), "--runs", "taught", "--device", "cpu"]
    run_script("labelling", *options, "--out", tmp_path, out=tmp_path)
    found = json.loads((tmp_path / "labelling.json").read_text())
    assert found["command"] == "python benchmarks/labelling.py out --runs taught"
    assert list(found["ways"]) == ["greedy", "taught"]
    # What greedy labels are worth on held-out speakers is what validation said of the seed: the round that
    # was trained in between, for its time, is forgotten.
    greedy = found["ways"]["greedy"]
    assert greedy["heldout"]["wer"] == pytest.approx(read(out / "seed" / "journal.jsonl")[-1]["valid"]["wer"])
    for way in found["ways"].values():
        assert 0 < way["share_of_round"] < 1
        for trusted in way["clients"]["trusted"].values():
            assert trusted[0]["wer"] == way["clients"]["wer"]  # everything is kept
            thresholds = [row["least"] for row in trusted]
            assert thresholds == sorted(thresholds)


def test_symbols_a_frame_are_counted_for_greedy_search_and_beams(tmp_path: Path, world: World) -> None:
    recognizer = Recognizer(
        Blueprint(FRONTEND, MODELS["transducer"]), world.tokens, world.runtime("transducer").model
    )
    recognizer.save(tmp_path / "out" / "run" / "model")
    options = [str(tmp_path / "out" / "run"), "--data", str(world.corpus), "--width", "1", "--quick"]
    run_script("symbols", *options, "--out", tmp_path, out=tmp_path)
    found = json.loads((tmp_path / "symbols.json").read_text())
    assert list(found["symbols"]) == ["1", "2", "4"]
    for row in found["symbols"].values():
        assert row["beam"]["wer"] == row["greedy"]["wer"]  # a width of 1


def test_stacked_clients_come_to_what_they_come_to_alone(tmp_path: Path) -> None:
    found = run_quickly("stacked", tmp_path)
    for case in found["cases"].values():
        assert case["difference"] < 1e-4
        assert all(case[way]["seconds"] > 0 for way in ("alone", "stacked", "graphs", "limit"))


def test_stacked_clients_on_a_cpu_train_the_same_model(tmp_path: Path) -> None:
    rows = run_quickly("stacked_cpu", tmp_path)["rows"]
    assert [row["kind"] for row in rows] == ["blstm", "conformer"]
    assert all(row["ratio"] > 0 and row["same_bits"] in (True, False) for row in rows)


def test_the_help_starts_faster_than_torch_and_a_run_does_not(tmp_path: Path) -> None:
    found = run_quickly("start_up", tmp_path)["commands"]
    assert found["antiphon --help"]["cpu"]["ratio"] < 1
    assert found["antiphon run, to the end of its first step"]["cpu"]["ratio"] > 1


def test_links_and_gloo_carry_messages_and_sums_of_all_sizes(tmp_path: Path) -> None:
    # Not in a fork: the script starts itself again, twice.
    command = [sys.executable, str(BENCHMARKS / "links.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    sizes = json.loads((tmp_path / "links.json").read_text())["sizes"]
    assert list(sizes) == ["message", "26 thousand", "1 million", "10 million"]
    assert all(row[way]["wall"] > 0 for row in sizes.values() for way in ("links", "gloo"))


def test_the_transducer_s_loss_is_the_same_with_and_without_the_whole_lattice_in_memory(
    tmp_path: Path,
) -> None:
    found = run_quickly("rnnt", tmp_path)
    assert found["from"]["joint"]["differences"]["whole"]["gradients"] < 1e-5


def test_the_ctc_loss_is_pytorch_s(tmp_path: Path) -> None:
    found = run_quickly("ctc", tmp_path)
    assert found["differences"]["pytorch"]["losses"] < 1e-6
    assert found["differences"]["pytorch"]["gradients"] < 1e-5


def test_a_planted_word_is_found_without_noise_and_the_bounds_follow_from_epsilon(tmp_path: Path) -> None:
    said = {"heldout": ["h1"], "pool": ["p1", "p2", "p3"]}
    lines = [
        json.dumps({"split": split, "meeting": meeting, "text": f"we said {meeting} {number}"})
        for split, meetings in said.items()
        for meeting in meetings
        for number in range(4)
    ]
    with gzip.open(tmp_path / "utterances.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    run_script("canary", tmp_path, "--quick", "--out", tmp_path, out=tmp_path)
    found = json.loads((tmp_path / "canary.json").read_text())
    assert found.keys() >= PROVENANCE
    assert found["clients"] == 3
    plain = [case for case in found["cases"] if case["noise"] == "none"]
    assert [case["published"]["rate"] for case in plain] == [1.0, 1.0]
    paper = next(case for case in found["cases"] if case["noise"] == "eq. 9" and case["claimed"] == 2)
    assert paper["epsilon"] == 4  # two rounds
    assert paper["bound_of_claim"] == pytest.approx(0.8808, abs=1e-4)
    assert paper["bound"] == pytest.approx(0.9820, abs=1e-4)
    run_script("canary_plots", tmp_path / "canary.json", tmp_path / "canary.svg", out=tmp_path)
    assert "most that the claimed ε allows" in (tmp_path / "canary.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_attacks_on_updates_try_every_setting_and_signs_prove_tokens(tmp_path: Path) -> None:
    """Gradients of the output bias are negative only for tokens of the text: no token is named wrongly."""
    found = run_quickly("who_spoke", tmp_path)
    rows = {row["setting"]: row for row in found["identification"]}
    assert {"plain", "clipped, each layer", "low rank (LoRA, rank 8)", "noise, ε = 7.2 (recommended)"} <= set(
        rows
    )
    for row in rows.values():
        assert row["chance"] == pytest.approx(1 / found["speakers"])
        assert row["attackers"][row["best"]]["rate"] == max(one["rate"] for one in row["attackers"].values())
    tokens = {row["setting"]: row for row in found["tokens"]}
    assert tokens["plain"]["precision"] == 1.0
    assert tokens["plain"]["recall"] > 0.5
    assert tokens["noise, ε = 7.2 (recommended)"]["precision"] < 0.8
    left = {row["setting"]: row["distance"] for row in found["inversions"]}
    assert left["plain"] < left["noise, ε = 7.2 (recommended)"]


@pytest.mark.slow
def test_audits_refute_no_run_without_a_fault_and_find_clients_that_add_no_noise(tmp_path: Path) -> None:
    found = {
        (row["mechanism"], row["fault"]): row["seeds"][0] for row in run_quickly("audits", tmp_path)["rows"]
    }
    assert len({mechanism for mechanism, _ in found}) == 3
    assert not any(seed["refuted"] for (_, fault), seed in found.items() if not fault)
    assert found["flat, noise of clients", "clients add no noise"]["refuted"]
    assert all(seed["claimed"] == pytest.approx(3.0, rel=1e-3) for seed in found.values())


@pytest.mark.slow
def test_private_rounds_are_timed_and_their_noise_weighed(tmp_path: Path) -> None:
    rows = {row["noise"]: row for row in run_quickly("private_rounds", tmp_path)["rows"]}
    assert rows["independent"]["bands"] == 1
    assert rows["banded"]["bands"] == 4
    for row in rows.values():
        assert row["private_seconds"] > 0
        assert row["memory_mib"]["peak"] > row["memory_mib"]["before"]


def test_discrete_samplers_have_the_probabilities_that_opendp_s_have(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    for row in run_quickly("opendp_samplers", tmp_path)["rows"]:
        assert row["ours"]["p_value"] > 1e-6
        assert row["opendp"]["p_value"] > 1e-6


def test_a_personalised_second_pass_is_timed(tmp_path: Path) -> None:
    found = run_quickly("personalizer", tmp_path)
    assert found["cache_bytes"] == 12 * found["words_said"]
    assert found["hypotheses"] == 20
    assert found["plain_ms"] > 0


def test_perplexity_falls_where_meetings_repeat_their_words(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"{meeting}{number}",
            "meeting": meeting,
            "split": split,
            "text": f"the {meeting} is a {meeting}",
        }
        for meeting, split in (
            ("fog", "pool"),
            ("dog", "heldout"),
            ("log", "heldout"),
            ("hat", "test"),
            ("cat", "test"),
        )
        for number in range(160)
    ]
    (tmp_path / "meetings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "books.txt").write_text("the fog is a dog\nthe dog is a log\na hat is the cat\n" * 10)
    options = [str(tmp_path / "meetings.jsonl"), "--background", str(tmp_path / "books.txt"), "--quick"]
    run_script("marginal_perplexity", *options, "--out", tmp_path, out=tmp_path)
    found = json.loads((tmp_path / "marginal_perplexity.json").read_text())
    assert (
        found["command"]
        == "python benchmarks/marginal_perplexity.py meetings.jsonl --background books.txt --quick"
    )
    assert found["unknown"] == 0
    for ways in found["backgrounds"].values():
        assert ways["own"]["perplexity"] < ways["background"]["perplexity"]
        assert ways["own"]["meetings_better"] == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc/self/status")
def test_a_pruned_client_sends_and_gets_fewer_bytes(tmp_path: Path) -> None:
    found = run_quickly("pruning", tmp_path)["encoders"]["quick"]
    assert found["ratio"]["bytes_up"] == found["ratio"]["parameters"] < found["ratio"]["bytes_down"] < 0.62
    assert all(value > 0 for value in found["ratio"].values())


BOOKS = "the cat sat\nthe dog sat\na dog sat on the mat\nthe cat ran\n" * 5


def write_lists(folder: Path) -> None:
    """Every meeting has a word of its own, heard right at first and then as "dog"; and a text about cats."""
    (folder / "books.txt").write_text(BOOKS)
    parts = {"lm": -5.0, "acoustic": -10.0}
    lists = []
    for split, word in (("heldout", "fog"), ("heldout", "bog"), ("test", "log"), ("test", "hog")):
        clear = [Hypothesis(f"{word} the {word}", score=-1.0, parts=parts)]
        unclear = [Hypothesis(f"the {heard} sat", score=-1.0, parts=parts) for heard in ("dog", word)]
        for number, hypotheses in enumerate((clear, unclear, unclear)):
            said = hypotheses[-1].text
            lists.append(NBest(f"{word}{number}", tuple(hypotheses), said, session=word, split=split))
    write_nbest(folder / "lists.jsonl", lists)


def run_on_lists(name: str, folder: Path, *options: str) -> dict[str, Any]:
    background = ("--background", folder / "books.txt")
    run_script(name, folder / "lists.jsonl", *options, *background, "--quick", "--out", folder, out=folder)
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    assert found.keys() >= PROVENANCE
    return found


def test_fine_tuning_stands_beside_marginals(tmp_path: Path) -> None:
    write_lists(tmp_path)
    config = TransformerLmConfig(8, num_layers=1, num_heads=2, feed_forward_dim=12)
    tokens = Characters(" abcdefghijklmnopqrstuvwxyz")
    model = config.build(0, tokens.size)
    NeuralLm(config, tokens, model).save(tmp_path / "lm")
    books = str(tmp_path / "books.txt")
    found = run_on_lists("fine_tuning", tmp_path, "--lm", str(tmp_path / "lm"), "--heldout", books)
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["background model", "marginals", "fine-tuning, shared", "fine-tuning, personal"]
    num_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert rows["fine-tuning, shared"]["bytes_up"] == num_bytes
    assert 0 < rows["fine-tuning, shared"]["bytes_down"] - num_bytes < 300  # the settings of a task
    assert rows["marginals"]["perplexity"] == rows["background model"]["perplexity"]
    assert rows["fine-tuning, shared"]["perplexity"] != rows["background model"]["perplexity"]
    assert found["clients"] == {"heldout": 2, "test": 2}


def test_variants_of_marginals_are_compared_on_halves_of_the_meetings(tmp_path: Path) -> None:
    write_lists(tmp_path)
    save_ngram(estimate(BOOKS.splitlines(), order=2), tmp_path / "lm.arpa")
    splits = ("--split", "heldout", "test")
    found = run_on_lists("marginal_variants", tmp_path, "--lm", str(tmp_path / "lm.arpa"), *splits)
    variants = found["variants"]
    assert {len(row["changes"]) for row in variants.values()} == {1}
    assert variants["the paper"]["before"] == pytest.approx(8 / 36)  # two of nine words of each meeting
    assert variants["the paper"]["after"] == 0


def test_a_run_of_marginals_that_is_missing_is_made(tmp_path: Path) -> None:
    """With a model of the other meetings, whose texts are those of the pool."""
    write_lists(tmp_path)
    with gzip.open(tmp_path / "lists.jsonl.gz", "wt") as file:
        file.write((tmp_path / "lists.jsonl").read_text())
    with gzip.open(tmp_path / "other-books.tsv.gz", "wt") as file:
        file.write(BOOKS)
    with gzip.open(tmp_path / "meetings.jsonl.gz", "wt") as file:
        for number, text in enumerate(["never read", *BOOKS.splitlines()]):
            split = "pool" if number else "test"
            row = {"id": f"{number}", "meeting": "a", "split": split, "text": text}
            file.write(json.dumps(row) + "\n")
    run_script("marginals", tmp_path, "--only", "meetings", "--out", tmp_path, out=tmp_path)
    found = json.loads((tmp_path / "marginals.json").read_text())
    assert found.keys() >= PROVENANCE
    assert (tmp_path / "meetings.txt").read_text() == BOOKS
    assert found["models"]["meetings"]["command"] == "antiphon lm ngram meetings.txt --order 3"
    run = found["runs"]["meetings"]
    assert run["adapted"] == "meetings"
    assert [row["name"] for row in run["rows"][:3]] == ["first pass", "background model", "T = 1"]
    assert run["clients"] == 2


def test_every_engine_is_measured_or_named_as_missing(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    found = run_quickly("synthesis", tmp_path)
    assert found["engines"].keys() | found["missing"].keys() == {
        "flite",
        "festival",
        "pico",
        "espeak",
        "kokoro",
    }
    assert all(own["one"]["speech_seconds"] > 10 for own in found["engines"].values())


def test_engines_can_be_named(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    found = run_quickly("synthesis", tmp_path, "--engines", "espeak")
    assert [*found["engines"], *found["missing"]] == ["espeak"]


@pytest.mark.skipif(find_installed(MOONSHINE_TINY) is None, reason="needs antiphon[encoder]")
def test_a_recogniser_hears_every_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("moonshine_voice", "soundfile", "espeakng_loader"):
        pytest.importorskip(package)
    # A script in a fork would not see the variable.
    monkeypatch.setenv("ANTIPHON_KOKORO", str(write_tiny_kokoro(tmp_path / "kokoro")))
    engines = find_engines(["espeak"])
    voices = draw_voices(engines, 1, seed=0)
    lines = ["The committee met on Tuesday to hear the news.", "Nobody had read the report of the railway."]
    sayings = plan_sayings("test", [TextRules(None).read("one", lines)], voices, 1, seed=0)
    speak_corpus(tmp_path / "corpus", sayings, voices, engines)
    options = (str(tmp_path / "corpus"), "--quick", "--out", str(tmp_path))
    subprocess.run([sys.executable, BENCHMARKS / "intelligibility.py", *options], check=True)
    found = json.loads((tmp_path / "intelligibility.json").read_text())
    assert found.keys() >= PROVENANCE
    rows = found["rows"]
    assert rows.keys() == {"recordings", "flite", "festival", "pico", "espeak", "kokoro", "kokoro, mixtures"}
    assert rows["recordings"]["words"] == rows["espeak"]["words"] == 17
    assert len(rows["espeak"]["errors"]) == len(rows["espeak"]["voices"]) == 2
    heard, tones = (rows[row]["wer"]["estimate"] for row in ("recordings", "kokoro"))
    assert heard < 0.9 < tones  # there are no words in tones
    assert all("+" in speaker for speaker in rows["kokoro, mixtures"]["voices"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processor time is read from /proc")
@pytest.mark.skipif(find_installed(MOONSHINE_TINY) is None, reason="needs antiphon[encoder]")
def test_features_of_an_encoder_are_measured_beside_onnxruntime_alone(tmp_path: Path) -> None:
    pytest.importorskip("moonshine_voice")
    rows = run_quickly("extraction", tmp_path)["rows"]
    ways = [f"{way}, {number}" for way in ("bare", "antiphon") for number in ("1 process", "2 processes")]
    assert [row["way"] for row in rows] == [*ways, "batches, 1 process"]
    assert all(row["over_bare"] == 1 for row in rows[:2])
    assert all(row["utterances_per_second"] > 0 and row["processor_seconds"] > 0 for row in rows)


def test_untrained_matrices_differ_by_their_inputs_and_blocks_do_not(tmp_path: Path) -> None:
    """A block of width d has 12 d² weights of d inputs, and 8 d² of 4 d, half as large: c (12 + 4) = 10."""
    found = run_quickly("pruning_layers", tmp_path)["models"]["untrained, seed 0"]
    matrices = found["matrix"]["matrices"]
    assert matrices["feed_forward_before.1"] == pytest.approx(0.625, abs=0.005)
    assert matrices["feed_forward_before.4"] == pytest.approx(0.3125, abs=0.005)
    assert list(found["block"]["matrices"].values()) == pytest.approx([0.5] * 6, abs=1e-6)
    assert list(found["block"]["blocks"].values()) == pytest.approx([0.5] * 6, abs=0.005)


def test_beams_of_a_batch_have_the_lists_of_one_utterance_after_another(tmp_path: Path) -> None:
    """The benchmark itself compares the lists."""
    rows = run_quickly("beam", tmp_path)["rows"]
    assert [row["language_model"] for row in rows] == [False, True]
    assert all(row["ratio"] > 0 and row["times_real_time"] > 0 for row in rows)


def test_a_round_of_wav2vec2_trains_a_model_with_drawn_weights(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (row,) = run_quickly("wav2vec2_round", tmp_path, "--precisions", "float32")["rows"]
    assert row["num_parameters"] > 10_000
    assert row["times_real_time"] == pytest.approx(row["seconds_of_audio"] / row["seconds"])
