"""The commands, their options, and the modules that only they use."""
