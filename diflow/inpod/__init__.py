"""Programs that run in the pods of a job beside its own: the node check before the work, and the monitor during it."""
