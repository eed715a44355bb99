"""A simulator of a cluster under a policy: workloads of measured training applications, and streams of jobs."""
