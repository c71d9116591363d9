"""A worker process: its start, its sandbox, its rendezvous with the job's other processes, and how it drives an engine."""
