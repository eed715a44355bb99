"""The advice for messages of Kubernetes and Argo about a pod (each was recorded on a cluster)."""

from __future__ import annotations

import pytest

from diflow.record.status.advice import with_advice

_PULL = (
    'ErrImagePull: failed to pull and unpack image "nowhere.example/none:1": failed to resolve reference '
    '"nowhere.example/none:1": failed to do request: Head "https://nowhere.example/v2/none/manifests/1": dial tcp: '
    "lookup nowhere.example on 10.0.0.53:53: dial udp 10.0.0.53:53: connect: network is unreachable"
)
_LOGIN = "check the image's name and the login to its registry"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (_PULL, f"ErrImagePull: image nowhere.example/none:1: network is unreachable ({_LOGIN})"),
        (
            'ImagePullBackOff: Back-off pulling image "nowhere.example/none:1"',
            f"ImagePullBackOff: image nowhere.example/none:1 ({_LOGIN})",
        ),
        ("ImagePullBackOff", f"ImagePullBackOff ({_LOGIN})"),
        (
            "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 "
            "nodes are available: 1 Preemption is not helpful for scheduling.",
            "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu (ask for less, or wait for capacity)",
        ),
        (
            "Unschedulable: 0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
            "Unschedulable: 0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector "
            "(check nodeSelector and affinity)",
        ),
        (
            'CreateContainerConfigError: secret "keys" not found',
            'CreateContainerConfigError: secret "keys" not found '
            "(check the Secrets and ConfigMaps that the template names)",
        ),
        (
            'Error (exit code 64): failed to find name in PATH: exec: "nope": executable file not found in $PATH',
            'Error (exit code 64): failed to find name in PATH: exec: "nope": executable file not found in $PATH '
            "(check `command`: the image has no such program)",
        ),
        ("OOMKilled (exit code 137)", "OOMKilled (exit code 137); it needs more memory than its limit"),
        ("Error (exit code 1)", "Error (exit code 1)"),
        ("two\n  lines", "two lines"),
        ("", ""),
    ],
)
def test_trouble_is_told_in_one_line_with_what_to_do(text: str, told: str) -> None:
    assert with_advice(text) == told


def test_no_line_is_endless() -> None:
    assert len(with_advice("word " * 1000)) <= 240
