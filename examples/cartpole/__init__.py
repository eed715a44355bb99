"""A real distributed reinforcement-learning job: one learner, some collectors and one evaluator play CartPole-v1.

The processes of a job share the cores of its nodes. A BLAS that starts a thread for each core in every process makes
matrices as small as ours slower, so it is held to one thread here, before any module of this package imports numpy.
"""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
