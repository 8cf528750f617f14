from antiphon.config import override
from antiphon.data.importing import ImportOptions, import_corpus
from antiphon.decoding.recognizer import Recognizer
from antiphon.recipes import RECIPES
from antiphon.recipes.launch import run_experiment

import_corpus("recordings", "speech", ImportOptions(split_speakers=(0.8, 0.1, 0.1)))
experiment = override(RECIPES["demo"](), ["seed=1", "runs.dga.rounds.cohort=20"])
scores = run_experiment(experiment, data="speech", out="results")
print(scores["dga"]["words"])
print(Recognizer.load("results/dga").transcribe("hello.wav"))
