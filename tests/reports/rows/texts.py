"""Texts that were not true."""

from __future__ import annotations

from tests.reports.table import Kind, Row

KINDS = (
    Kind(
        "Texts that were not true",
        "No text says never of what can change by itself; what excludes is named, with the number of nodes.",
        (
            Row(
                "device plugins that come late",
                "no node offers GPUs for two minutes",
                "can never start here: a resource that no node offers",
                "the resource by name, and it starts when it comes",
                "test_texts.py::test_a_resource_that_no_node_offers_yet_is_named_and_the_job_starts_when_it_comes",
            ),
            Row(
                "startup taints, selectors",
                "nodes with a taint of the network, nodes without the label",
                "nodes are not what it may run on",
                "the taint and the label, each with its nodes",
                "test_texts.py::test_the_taint_and_the_label_that_exclude_nodes_are_named_with_their_numbers",
            ),
            Row(
                "notebooks that hold the GPUs",
                "pods of others on the only node",
                "can never start here, add nodes",
                "what other pods hold",
                "test_texts.py::test_pods_of_others_that_hold_the_nodes_are_not_called_a_lack_of_nodes",
            ),
            Row(
                "a reboot",
                "one of the gang's nodes is cordoned",
                "can never start here, add nodes",
                "which node is closed",
                "test_texts.py::test_a_node_that_is_closed_for_a_while_is_not_called_a_lack_of_nodes",
            ),
        ),
    ),
)
