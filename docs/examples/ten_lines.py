import antiphon

antiphon.import_corpus("recordings", "speech", antiphon.ImportOptions(split_speakers=(0.8, 0.1, 0.1)))
experiment = antiphon.recipe("docs/examples/small.yaml")
scores = antiphon.run_experiment(experiment, data="speech", out="results")
recognizer = antiphon.Recognizer.load("results/dga")
print(recognizer.transcribe("hello.wav"), scores["dga"]["words"])
