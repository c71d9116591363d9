"""The client's end of a job: sends steps, receives results, and recovers when a worker or the pool is lost."""
