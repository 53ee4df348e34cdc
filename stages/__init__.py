"""What stages declare to flows, and how they are found."""
