"""The client's end of a job: what is sent, what comes back, and what happens when a worker or the pool is lost."""
