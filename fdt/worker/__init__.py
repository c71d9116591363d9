"""Runs worker processes: forks and sandboxes them, connects them to their job's other processes, drives their engines."""
