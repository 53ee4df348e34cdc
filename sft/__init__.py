"""Fine-tuning on accepted trajectories: configuration, statistics, exports, and LLaMA-Factory as the engine."""
