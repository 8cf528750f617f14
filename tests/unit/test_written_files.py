"""Files are written in one way: under another name, then synced and renamed. Read from the source code."""

from __future__ import annotations

import ast
from pathlib import Path

import antiphon

ROOT = Path(antiphon.__file__).parent
WRITERS = {"write_text", "write_bytes", "save_file", "savez", "savefig", "save_pretrained"}
WRITERS |= {"copyfile", "copytree"}
# Modules that write in another way, and why that is safe.
OTHERS = {
    "clients/states.py": "renames at once, and syncs all states of a round before its checkpoint",
    "data/huggingface_folder.py": "into the folder of a model that is being made",
    "data/importing/conversion.py": "into a new folder",
    "data/store.py": "into a new folder",
    "data/tokens.py": "into the folder of a model that is being made",
    "data/tts/speech_engines.py": "a temporary file for another program",
    "data/tts/spoken_corpus.py": "a temporary source beside a new folder",
    "experiment/jobs.py": "what another process prints",
    "experiment/runner.py": "into a folder that is being filled",
    "exporting/export_folder.py": "into a new folder",
    "federation/engine_process.py": "what another process prints",
    "federation/kits.py": "into a new folder, or what a server writes again when it starts",
    "federation/sent_folders.py": "into a new folder",
    "federation/site_lists.py": "into a temporary folder, which is sent",
    "records/key_file.py": "syncs a new file, and links it: the first of several processes wins",
    "secure_aggregation/record_files.py": "to the path that `replace_file` gives",
    "lm/arpa.py": "into a folder that is being filled",
    "models/model.py": "into the folder of a model that is being made",
    "records/checkpoint.py": "into a folder that is synced and renamed",
    "records/files.py": "the way itself",
    "records/journal.py": "adds lines, and syncs them before the checkpoint",
    "records/writer.py": "TensorBoard's events, which a resumed run writes again",
    "report/drawing.py": "into memory",
    "scoring/trn.py": "to the path that `replace_file` gives",
    "data/summary.py": "to the path that `replace_file` gives",
}


def writes(call: ast.Call) -> bool:
    """Whether a call writes a file: by its name, or by the mode of `open`."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in WRITERS:
        return isinstance(function, ast.Attribute) or name != "write_text"  # that of `records.files` is safe
    words = [word.value for word in call.args if isinstance(word, ast.Constant)]
    modes = [set(word) for word in words if isinstance(word, str) and word]
    return name in ("open", "fdopen") and any(mode & set("wxa") and mode <= set("wxabt+") for mode in modes)


def test_every_module_writes_files_by_the_same_functions() -> None:
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.Call) and writes(node) for node in ast.walk(tree)):
            found.add(path.relative_to(ROOT).as_posix())
    assert sorted(found - OTHERS.keys()) == [], "use antiphon.records.files, or say why this is safe"
    assert sorted(OTHERS.keys() - found) == [], "these do not write any more"
