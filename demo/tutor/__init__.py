"""The tutor: an OpenAI-compatible server that answers by rule for the sample world.

It stands in for models where none is at hand: the demo's first minute, tests, load. It is no language model and is
never presented as one. See docs/behaviour/demo.md.
"""
