"""A Kubernetes API server and its objects: client, kinds, errors, reflector, leader election. It knows no jobs."""
