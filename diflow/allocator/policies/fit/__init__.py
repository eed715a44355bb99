"""The policy `fit`: jobs by priority and age, with preemption and backfill."""
