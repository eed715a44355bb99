"""`queues.yaml`: what is accepted, and the message for each error."""

from __future__ import annotations

import pytest

from diflow.allocator.model.views import QueueView
from diflow.allocator.watch.queues import read_file
from diflow.common.errors import InvalidError


def test_queues_are_read_with_their_amounts_in_base_units() -> None:
    text = """
    queues:
      - {name: vision, weight: 2, guarantee: {cpu: "4", nvidia.com/gpu: 1}, cap: {cpu: 5500m, memory: 2Gi}}
      - {name: vision-ann, parent: vision}
    """
    with pytest.raises(InvalidError):
        read_file(text.replace("5500m", "3"))
    assert list(read_file(text).queues) == [
        QueueView("vision", 2.0, {"cpu": 4000, "nvidia.com/gpu": 1}, {"cpu": 5500, "memory": 2048}),
        QueueView("vision-ann", parent="vision"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "queues.yaml: not YAML"),
        ("", "queues.yaml: must be a mapping"),
        ("queues: 3", "queues.yaml: must be a mapping"),
        ("[" * 5000, "queues.yaml: "),
        ("queues: [{name: 2026-13-45}]", "queues.yaml: cannot be read"),
        ("queues: []\nqueue: []", "queue: unknown field; known are namespaces and queues"),
        ("queues: [{}]", r"queues\[0\].name: must be text"),
        ("queues: [{name: a, weight: .nan}]", r"queues\[0\].weight: must be a number"),
        ("queues: [{name: a, guarantee: 0}]", r"queues\[0\].guarantee: must be a mapping"),
        ("queues: [{name: a, cap: {cpu: -1}}]", r"queues\[0\].cap\[cpu\]: must be a quantity"),
        ("queues: [{name: a, cap: {cpu: 9999999P}}]", r"queues\[0\].cap\[cpu\]: is more than any cluster has"),
        ("queues: [{name: a, parent: 3}]", r"queues\[0\].parent: must be the name of a queue"),
        ("queues: [{name: a, parent: a}]", "'a' would be above itself"),
        ("queues: [a]", r"queues\[0\]: must be a mapping with a name"),
        ("queues: [{name: A_b}]", r"queues\[0\].name"),
        ("queues: [{name: a, wieght: 2}]", r"queues\[0\].wieght: unknown field"),
        ("queues: [{name: a, weight: -1}]", r"queues\[0\].weight: must be a number"),
        ("queues: [{name: a, cap: {cpu: lots}}]", r"queues\[0\].cap\[cpu\]: must be a quantity"),
        ("queues: [{name: a}, {name: a}]", "queues: the queue 'a' is there twice"),
        ("queues: [{name: a, parent: b}]", r"queues\[0\].parent: there is no queue 'b'"),
        ("queues: [{name: a, parent: b}, {name: b, parent: a}]", "'a' would be above itself"),
    ],
)
def test_a_mistake_is_named_with_its_path(text: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        read_file(text)


def test_a_weight_of_nothing_and_a_list_of_nothing_are_no_mistakes() -> None:
    assert read_file("queues: []").queues == ()
    assert read_file("queues: [{name: a, weight: 0, cap: }]").queues == (QueueView("a", 0.0),)


def test_a_queue_says_to_whom_it_lends_its_guarantee() -> None:
    text = "queues: [{name: a, guarantee: {cpu: 1}}, {name: b, lendsTo: all}, {name: c, lendsTo: preemptible}]"
    assert [queue.lends for queue in read_file(text).queues] == [False, True, False]
    with pytest.raises(InvalidError) as caught:
        read_file("queues: [{name: a, lendsTo: nobody}]")
    assert caught.value.path == "queues[0].lendsTo"
