"""Load the tables of a run for analysis, with questions, gold answers and verdicts joined."""
