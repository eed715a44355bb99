"""Which replicas of a job are silent, have stopped, or are slow: pure functions of what the replicas report."""
