"""Methods that order the questions of a phase; the first ones are selected."""
