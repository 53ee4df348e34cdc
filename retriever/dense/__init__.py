"""Dense search: encoders and the vector index."""
