"""The status of a job, derived from its record: attempts, phases, messages."""
