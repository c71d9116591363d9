"""Implements the commands and their options, and the Python interface `fdt.run` and `fdt.attach`."""
