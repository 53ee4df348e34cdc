"""Run tool-using LLM agents: tag dialect, environment, rollout engine, tools, judges and sandbox."""
