"""Cases that the tests of kube-batch and Volcano ask of a queueing scheduler, asked of ours."""
