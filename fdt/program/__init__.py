"""A training step as a graph with holes: what it is, how it travels, and whether a pool may run it."""
