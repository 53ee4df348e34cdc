"""Read and show what Treadle did not make: confined readers, parsers that refuse, text made safe, secrets kept out."""
