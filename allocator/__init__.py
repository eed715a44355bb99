"""The allocator's room: snapshot → policy → plan → apply. It may import `diflow` and `diflow.workflows`."""
