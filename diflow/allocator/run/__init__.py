"""The process of the allocator.

process            starts it: cluster, leadership, probes, metrics
wiring             makes its parts, and connects them
daemon             the loop: reconcile, plan if there is a reason, reconcile again
timers             the reasons that come with time
lease_requests     the reasons that come through its Lease; control_channel: the Lease, from both ends
once               one plan, for `diflow allocator once`
journal            snapshots and plans in a file
telemetry          metrics
"""
