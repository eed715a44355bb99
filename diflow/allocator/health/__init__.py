"""Which replicas of a job are silent, stalled or slow: pure functions of what the replicas report."""
