"""A sample world of small Python programs, whose details only the human who requests them knows."""
