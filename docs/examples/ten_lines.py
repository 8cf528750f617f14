from pathlib import Path

import yaml

from antiphon.config import overlay
from antiphon.data.importing import ImportOptions, import_corpus
from antiphon.decoding.recognizer import Recognizer
from antiphon.recipes import RECIPES, launch

import_corpus("recordings", "speech", ImportOptions(split_speakers=(0.8, 0.1, 0.1)))
settings = yaml.safe_load(Path("docs/examples/small.yaml").read_text())
scores = launch.run_experiment(overlay(RECIPES["dga"](), settings), data="speech", out="results")
print(Recognizer.load("results/dga").transcribe("hello.wav"), scores["dga"]["words"])
