"""A worker process: how it starts, what it may reach, how it finds the others of its job, and how it runs an engine."""
