"""The pool: its services, the life of its jobs, its hosts and their worker processes."""
