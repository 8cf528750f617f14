import antiphon

antiphon.import_corpus("recordings", "speech", antiphon.ImportOptions(split_speakers=(0.8, 0.1, 0.1)))
scores = antiphon.run("docs/examples/small.yaml", data="speech", out="results")
recognizer = antiphon.Recognizer.load("results/dga")
print(recognizer.transcribe("hello.wav"), scores["dga"]["words"])
