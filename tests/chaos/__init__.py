"""Random operations on the jobs of a real cluster, and what must hold for all of them: `make chaos`.

Users submit, suspend, scale, stop, retry, resubmit and delete jobs with diflow, argo and kubectl. Pods are deleted and
fail. The allocator, the controller and Argo's controller are killed. With two nodes, the second one becomes silent,
loses its power, and is taken away and given back (`second.py`). The same seed gives the same operations, but not the
same times: what an operation meets depends on the machine.
"""
