"""Cases from the tests of kube-batch and Volcano, applied to our policies."""
