"""Tools that an agent may call; each returns a structured outcome."""
