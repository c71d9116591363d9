"""Runs a pool: serves clients, queues and runs their jobs, and starts worker processes on the pool's hosts."""
