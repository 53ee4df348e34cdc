"""Find the files with the weights of a model folder, and measure how far a training moved them."""
