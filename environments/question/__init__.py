"""Questions with gold answers, answered with tools inside one assistant turn: the default type of environment."""
