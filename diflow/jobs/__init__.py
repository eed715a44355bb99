"""What can be done with a job on a cluster: submit, list, wait, follow, scale, retry, delete."""
