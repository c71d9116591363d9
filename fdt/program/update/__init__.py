"""Finds what a step does to each parameter, and writes it down as a formula: shared by both runtimes."""
