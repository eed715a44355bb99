"""What people ask the allocator: queues, jobs and nodes as rows, why a job waits, what a new job would do."""
