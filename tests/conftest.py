from hypothesis import settings

# Needs Flower, which lives in an environment of its own: it is run by hand, never collected.
collect_ignore = ["fixtures/make_flower_aggregation.py"]

# How long one example takes depends on who else uses the machine and says nothing about the code.
settings.register_profile("antiphon", deadline=None)
settings.load_profile("antiphon")
