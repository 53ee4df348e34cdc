"""Engine environments, child processes and their supervisor, model serving, and the checks of `treadle doctor`."""
