"""The model card of a run: README.md in the style of Hugging Face, with metadata that its tools read.

A card has numbers, and names of classes and settings. It has no names of speakers, no texts and no paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from antiphon.records.files import write_text
from antiphon.records.reading import read_as
from antiphon.records.run_files import ModelFile, ModelNotes
from antiphon.report import tables
from antiphon.report.formatting import bounds, markdown_table, percent
from antiphon.report.privacy_statement import privacy_statement
from antiphon.report.run_folder import RunFolder
from antiphon.report.server_view import server_view
from antiphon.scoring.statistics import NUM_RESAMPLES, plural

CARD = "README.md"
LIMITS = """\
- The model was measured on the speakers above and on no others. Other accents, microphones, rooms, noise and
  subjects can give many more errors.
- It writes only the characters of its training texts, and it always writes something: speech in another
  language, music and noise become words, too.
- It was not tested for equal quality across groups of speakers. The report of the run shows the error rate of
  each test speaker.
- Do not use it where an unnoticed error does harm: medicine, law, emergencies."""
USE_MODEL = """\
With antiphon, from the folder that holds this file (or from the folder of the run):

```sh
antiphon transcribe . recording.wav
```

```python
import antiphon

print(antiphon.Recognizer.load(".").transcribe("recording.wav"))
```"""
USE_EXPORT = """\
With Python, numpy and onnxruntime, from the folder that holds this file:

```sh
pip install numpy onnxruntime
python transcribe.py recording.wav
```

`--int8` takes the quantised graphs, if they were exported. Recordings that are not WAV need soundfile, and
other sample rates than 16 kHz need soxr. `export.json` describes the front end, `tokens.txt` the tokens."""


def write_card(run: Path, target: Path, exported: Sequence[Sequence[str]] | None = None) -> None:
    """Write the card of a run's model to `target`/README.md.

    exported: for an exported model, the rows of the comparison with the run's model, the head first; or none.
    """
    text = model_card(run, exported)
    write_text(target / CARD, text)


def model_card(run: Path, exported: Sequence[Sequence[str]] | None = None) -> str:
    """Return the text of the card."""
    folder = RunFolder.load(run) if (run / "run.json").is_file() else None
    model = run / "model" if (run / "model" / "model.json").is_file() else run
    body = read_as(ModelFile, model / "model.json")
    notes, blueprint = body.notes, body.blueprint
    results = tables.all_results([folder]) if folder is not None else {}
    use = USE_MODEL if exported is None else USE_EXPORT
    parts = [
        _metadata(notes.run, results, exported is not None),
        f"# {notes.run}: a speech recogniser",
        _summary(folder, blueprint, notes),
        "## Use",
        "The model turns recordings of speech at 16 kHz into text, by greedy search. It is meant for speech "
        "like that of its training, and for research on federated learning.",
        use,
        "## Results",
        _results(results),
        *(
            ["The exported graphs, compared with the run's model:", markdown_table(*exported)]
            if exported
            else []
        ),
        "## Training data",
        _training_data(folder, notes),
        "## Training",
        _training(folder, notes),
        "## Limits",
        LIMITS,
        "## Privacy",
        _privacy(folder),
        "## Versions",
        _versions(folder),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(name: str, results: Mapping[str, Sequence[tables.Result]], is_export: bool) -> str:
    tags = ["speech-recognition", "federated-learning", "antiphon", *(["onnx"] if is_export else [])]
    body: dict[str, Any] = {
        "library_name": "onnxruntime" if is_export else "antiphon",
        "pipeline_tag": "automatic-speech-recognition",
        "tags": tags,
    }
    entries = []
    for split, rows in results.items():
        overall = rows[-1].evaluation.overall
        rates = {"wer": overall.words.rate, "cer": overall.characters.rate}
        entries.append(
            {
                "task": {"type": "automatic-speech-recognition"},
                "dataset": {"name": f"the run's corpus, split {split}", "type": "private", "split": split},
                "metrics": [{"type": key, "value": round(100 * rate, 2)} for key, rate in rates.items()],
            }
        )
    if entries:
        body["model-index"] = [{"name": name, "results": entries}]
    return f"---\n{yaml.safe_dump(body, sort_keys=False, allow_unicode=True)}---"


def _summary(folder: RunFolder | None, blueprint: Mapping[str, Any], notes: ModelNotes) -> str:
    frontend, model = _choice(blueprint.get("frontend")), _model_choice(blueprint.get("model"))
    about = folder.about if folder is not None else {}
    number = notes.num_parameters or about.get("num_parameters")
    size = f" with {number:,} parameters" if number else ""
    text = f"A `{model}` model{size} on the front end `{frontend}`"
    if folder is None:
        return f"{text}. Its folder has no record of its training."
    algorithm = _choice(folder.about["config"].get("algorithm", "unknown"))
    return f"{text}, trained with antiphon by `{algorithm}` in {plural(folder.num_finished, 'round')}."


def _results(results: Mapping[str, Sequence[tables.Result]]) -> str:
    lines = [["split", "model", "WER % [95 % interval]", "CER % [95 % interval]", "speakers", "utterances"]]
    for split, rows in results.items():
        for row in rows:
            overall = row.evaluation.overall
            rates = ((overall.words.rate, row.wer), (overall.characters.rate, row.cer))
            cells = [f"{percent(rate)} {bounds(interval)}".strip() for rate, interval in rates]
            kind = "this model" if row.run is not None else "the model it started from"
            sizes = [f"{len(row.evaluation.speakers):,}", f"{overall.num_utterances:,}"]
            lines.append([split, kind, *cells, *sizes])
    if len(lines) == 1:
        return "The model was not evaluated."
    explained = f"Intervals are over speakers: {NUM_RESAMPLES:,} bootstrap samples. Search is greedy."
    return f"{markdown_table(*lines)}\n\n{explained}"


def _training_data(folder: RunFolder | None, notes: ModelNotes) -> str:
    if data := notes.training:
        lines = [["clients", "speakers", "utterances", "hours"]]
        sizes = [f"{number:,}" for number in (data.clients, data.speakers, data.utterances)]
        text = markdown_table(*lines, [*sizes, f"{data.hours:.2f}"])
    elif folder is not None and folder.speech_seconds:
        hours = folder.speech_seconds / 3600
        text = (
            f"{plural(folder.num_clients, 'client')}; those that took part have {hours:.2f} hours of speech."
        )
    else:
        return "Unknown."
    config = folder.about["config"] if folder is not None else {}
    if (share := config.get("labelled", 1.0)) < 1.0:
        text += f"\n\n{100 * share:g} % of the clients have transcripts; the others have speech alone."
    if folder is not None and folder.about.get("started_from"):
        text += "\n\nThe training began with an earlier model, which has its own training data."
    if config.get("corruption", {}).get("fraction"):
        text += (
            "\n\nThe speech or the transcripts of some clients were corrupted on purpose, as an experiment."
        )
    return (
        f"{text}\n\nThis card holds no transcripts and no names. Ask the owners of the corpus for its terms."
    )


def _training(folder: RunFolder | None, notes: ModelNotes) -> str:
    if folder is None:
        return "Unknown."
    about, round = folder.about, "unknown" if notes.round is None else str(notes.round)
    lines = [
        ["setting", "value"],
        ["recipe", Path(str(about["recipe"])).name],
        ["rounds", f"{folder.num_finished:,}"],
        ["round of this model (best on validation speakers)", round],
        ["clients of a round", f"{folder.cohort_size:,}"],
        ["seed", str(about["seed"])],
        *(["algorithm: " + path, value] for path, value in _numbers(about["config"].get("algorithm", {}))),
    ]
    return markdown_table(*lines)


def _privacy(folder: RunFolder | None) -> str:
    config = folder.about["config"] if folder is not None else {}
    if "central" in config.get("algorithm", {}):
        where = "The model was trained in one place, on speech and transcripts that the trainer could read."
    else:
        where = (
            "Speech and transcripts of clients were used where they are: clients sent changes of parameters "
            "and measurements such as losses. In a simulation, all clients are on one machine."
        )
    saw = [f"- {line}" for line in server_view(folder)] if folder is not None else ["- unknown"]
    where = "\n".join([where, "", "What the server saw:", "", *saw])
    stated = privacy_statement(folder) if folder is not None else ""
    none = (
        "Differential privacy: none. antiphon added no noise in training, so no ε can be given. Parameters "
        "can hold traces of the training data: publish the model only if its speakers agree."
    )
    return f"{where}\n\n{stated or none}"


def _versions(folder: RunFolder | None) -> str:
    if folder is None:
        return "Unknown."
    about = folder.about
    packages = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
    commit = f"\n- antiphon's commit: `{about['commit']}`" if about.get("commit") else ""
    return f"- {packages or 'unknown'}{commit}\n- device: {about.get('device', 'unknown')}"


def _choice(tree: Any) -> str:
    """Return the name of a choice: the key of a mapping with one key, or the text itself."""
    return str(next(iter(tree))) if isinstance(tree, Mapping) and tree else str(tree)


def _model_choice(tree: Any) -> str:
    """Return the name of a model, with the model that a pruned one was made from."""
    name = _choice(tree)
    return f"{name} {_model_choice(tree[name]['full'])}" if name == "reduced" else name


def _numbers(tree: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the numbers of nested settings and choices without settings; texts may be names of clients."""
    if isinstance(tree, Mapping):
        if not tree:
            yield path, "yes"
        for key, value in tree.items():
            yield from _numbers(value, f"{path}.{key}".lstrip("."))
    elif isinstance(tree, bool | int | float):
        yield path, str(tree)
