"""The tutor: an OpenAI-compatible server that answers by rule for the sample world.

It is used if no model is available: in the demo's first minute, in tests and for load. It is not a language
model and is never presented as one. See docs/behaviour/demo.md.
"""
