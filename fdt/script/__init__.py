"""Runs the user's script in this process, from its first line to its last."""
