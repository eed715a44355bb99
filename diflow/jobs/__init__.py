"""The operations on a job in a cluster: submit, list, wait, follow, scale, retry, delete."""
