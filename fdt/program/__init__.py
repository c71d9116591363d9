"""Represents a training step as a graph with holes, serialises it, and checks whether a pool may run it."""
