"""From a job's Workflow and pods to the writes that bring them closer to what was decided."""
