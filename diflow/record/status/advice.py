"""Shortens the messages of Kubernetes and Argo about a failing pod to one line, and adds what to do about it."""

from __future__ import annotations

import re
from typing import Final

_IMAGE: Final = re.compile(r'image "?([^\s":]+(?::[^\s"]+)?)"?')
# The part of the scheduler's message that a user cannot act on.
_SCHEDULER_TAIL: Final = re.compile(r"\.? (no new claims to deallocate|preemption:).*", re.DOTALL)
_ADVICE: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull"),
     "check the image's name and the login to its registry"),
    (re.compile(r"Insufficient "), "ask for less, or wait for capacity"),
    (re.compile(r"didn't match .*(selector|affinity)"), "check nodeSelector and affinity"),
    (re.compile(r"had untolerated taint"), "check tolerations"),
    (re.compile(r"CreateContainerConfigError"), "check the Secrets and ConfigMaps that the template names"),
    (re.compile(r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim .* not found"),
     "check the PersistentVolumeClaims that the job names"),
    (re.compile(r"executable file not found|exec: .*no such file or directory"),
     "check `command`: the image has no such program"),
    (re.compile(r"OOMKilled"), "it needs more memory than its limit"),
)  # fmt: skip
_LONGEST: Final = 240


def with_advice(text: str) -> str:
    """The message in one line of bounded length, followed by advice if there is any."""
    line = " ".join(text.split())
    advice = next((advice for pattern, advice in _ADVICE if pattern.search(line)), "")
    line = _pulling(line)
    line = _SCHEDULER_TAIL.sub("", line).rstrip(".")
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST - 3]}..."
    if not advice:
        return line
    return f"{line}; {advice}" if line.endswith(")") else f"{line} ({advice})"


def _pulling(line: str) -> str:
    """Keep the image and the last cause of a failed pull: containerd reports each intermediate step."""
    match = re.match(r"(ErrImagePull|ImagePullBackOff): ", line)
    image = _IMAGE.search(line)
    if not match or not image:
        return line
    last = line.rsplit(": ", 1)[-1]
    cause = "" if image[1] in last or last.startswith("Back-off") else f": {last}"
    return f"{match[1]}: image {image[1]}{cause}"
