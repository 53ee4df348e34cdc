"""A sample world of small Python programs, whose details only a human knows who asks for them."""
