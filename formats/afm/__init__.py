"""Training rows of Agent Foundation Models and GAP (arXiv 2508.13167, 2510.25320): schema for verl with tools."""
