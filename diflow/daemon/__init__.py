"""What the processes of diflow share: leadership, probes, logs, settings from the environment."""
