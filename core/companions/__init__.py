"""Run the programs that a run needs next to it, such as a service of environments."""
