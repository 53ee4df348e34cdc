"""Direct preference optimisation (arXiv 2305.18290) on pairs of token ids: the critic and the policy of SWEET-RL."""
