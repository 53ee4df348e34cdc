"""What runs inside the environment of the engine `sft`, and nowhere else: LLaMA-Factory is imported here only.

Each command is a process of its own, `python -m treadle.sft.engine <command> <job.json>`. It tells what goes on in a
file of JSON lines (`events.py`); `treadle.sft.launch` starts it and reads them.
"""
