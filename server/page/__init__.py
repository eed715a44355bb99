"""The status page at `/`: jobs, their replicas over time, nodes and who is on them, and the queue with its reasons.

It only reads, and only what the viewer may list in the cluster. From outside to inside:

    routes     tokens, cookies, entity tags and headers; asks callables for the rest
    frame      whole documents: the page and the page to sign in with
    sections   a board as HTML
    board      what one viewer is shown of what the caches keep
    facts      what the caches keep of a Workflow, a pod and a node
"""

from __future__ import annotations

from diflow.server.page.board import ClusterState, Permissions
from diflow.server.page.facts import JobFacts, NodeFacts, PodFacts, trim_node, trim_pod, trim_workflow
from diflow.server.page.routes import Visitor, VisitorOf, routes
from diflow.server.page.sections import Freshness

__all__ = [
    "ClusterState",
    "Freshness",
    "JobFacts",
    "NodeFacts",
    "Permissions",
    "PodFacts",
    "Visitor",
    "VisitorOf",
    "routes",
    "trim_node",
    "trim_pod",
    "trim_workflow",
]
