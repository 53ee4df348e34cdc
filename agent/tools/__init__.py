"""The tools that an agent may call, each returning a structured outcome."""
