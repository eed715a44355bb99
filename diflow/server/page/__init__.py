"""The status page at `/`: jobs, their replicas over time, nodes with the jobs on them, and the queue with its reasons.

It is read-only, and shows what the viewer may list in the cluster. From outside to inside:

    mount      the page on the server: cache, identity and permissions
    cache      what the page keeps beside the API's cache
    routes     tokens, cookies, entity tags and headers
    render     the page as HTML, from the templates in templates/; drawing: its pictures, as SVG
    board      the part of the cluster state that one viewer sees
    facts      what the caches keep for it of a Workflow, a pod and a node, beside what all views show of a job
"""

from __future__ import annotations

from diflow.server.page.board import CacheSnapshot, Permissions
from diflow.server.page.facts import JobFacts, PodFacts, job_facts, pod_facts, trim_node
from diflow.server.page.render import Freshness
from diflow.server.page.routes import Visitor, VisitorOf, routes

__all__ = [
    "CacheSnapshot",
    "Freshness",
    "JobFacts",
    "Permissions",
    "PodFacts",
    "Visitor",
    "VisitorOf",
    "job_facts",
    "pod_facts",
    "routes",
    "trim_node",
]
