"""Score programs by calls of their functions, compared with what a reference program returns."""
