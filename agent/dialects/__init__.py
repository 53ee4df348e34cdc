"""Read and write the text of an agent's turns: one module per dialect."""
