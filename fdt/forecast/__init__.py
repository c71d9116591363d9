"""Predicts how long a step takes on more workers, from measured times; makes a table, a file and plots."""
