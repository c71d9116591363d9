"""The commands, their options, and what only they need."""
