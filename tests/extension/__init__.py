"""A package of somebody else's with one file for each thing that CONTRIBUTING.md says can be added."""
