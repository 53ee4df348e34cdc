"""What the trainers of transformers share; runs in the environments of engines."""
