"""Frontend half of ColBench: an agent writes web pages for a person, who compares pictures of them."""
