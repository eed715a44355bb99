"""Streams of jobs on a cluster with queues, their runs under a policy, and kube-batch's cycle to compare with."""
