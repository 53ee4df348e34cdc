"""The stage `rl`: plan, launch, check and report a training."""
