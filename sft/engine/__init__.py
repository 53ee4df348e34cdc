"""Run LLaMA-Factory inside the environment of the engine `sft`; no other package imports LLaMA-Factory.

Each command is a separate process, `python -m treadle.sft.engine <command> <job.json>`. It reports its progress in a
file of JSON lines (`core/engines/events.py`). `core/engines/training_run.py` starts the process and reads the file.
"""
