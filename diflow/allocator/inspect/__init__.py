"""Read-only queries: queues, jobs and nodes as rows, why a job waits, what a new job would change."""
