"""Runs the user's script in this process as python would, and protects files from scripts that are only checked."""
