"""Score pages by how similar their pictures are to those of the target pages."""
