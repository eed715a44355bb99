"""The kinds of Kubernetes objects that diflow uses, and their paths in the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from diflow.common.errors import NoNamespaceError, NotFoundError


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object and its place in the API."""

    name: str
    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As in an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", *parts: str) -> str:
        """The URL path of the objects of this kind, or of one of them. `namespace` None means all.

        Raises NotFoundError for an invalid name, as `..` in a path would lead to other objects.
        """
        if namespace is not None and not _is_segment(namespace):
            raise NoNamespaceError(f"there is no namespace {namespace!r}: this is not a valid name of a namespace")
        if not _is_segment(name):
            raise NotFoundError(f"there is no {self.about(name)}: this is not a valid name of an object")
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        if self.namespaced and namespace is not None:
            root += f"/namespaces/{quote(namespace, safe='')}"
        pieces = [root, self.plural, *([quote(name, safe="")] if name else []), *parts]
        return "/".join(pieces)

    def about(self, name: str = "") -> str:
        """The name of an object in messages."""
        return f"{self.name} {name}" if name else f"{self.plural}"

    @property
    def resource(self) -> str:
        """The name in RBAC and for `kubectl`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _is_segment(name: str) -> bool:
    """Kubernetes' own check of object names (IsValidPathSegmentName)."""
    return name not in {".", ".."} and "/" not in name and "%" not in name


WORKFLOW: Final = Kind("Workflow", "argoproj.io", "v1alpha1", "workflows")
POD: Final = Kind("Pod", "", "v1", "pods")
EVENT: Final = Kind("Event", "", "v1", "events")
NAMESPACE: Final = Kind("Namespace", "", "v1", "namespaces", namespaced=False)
NODE: Final = Kind("Node", "", "v1", "nodes", namespaced=False)
SERVICE: Final = Kind("Service", "", "v1", "services")
SERVICE_ACCOUNT: Final = Kind("ServiceAccount", "", "v1", "serviceaccounts")
CONFIG_MAP: Final = Kind("ConfigMap", "", "v1", "configmaps")
POD_TEMPLATE: Final = Kind("PodTemplate", "", "v1", "podtemplates")
PERSISTENT_VOLUME_CLAIM: Final = Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")
PERSISTENT_VOLUME: Final = Kind("PersistentVolume", "", "v1", "persistentvolumes", namespaced=False)
STORAGE_CLASS: Final = Kind("StorageClass", "storage.k8s.io", "v1", "storageclasses", namespaced=False)
CSI_NODE: Final = Kind("CSINode", "storage.k8s.io", "v1", "csinodes", namespaced=False)
POD_GROUP: Final = Kind("PodGroup", "scheduling.k8s.io", "v1beta1", "podgroups")
RESOURCE_QUOTA: Final = Kind("ResourceQuota", "", "v1", "resourcequotas")
LIMIT_RANGE: Final = Kind("LimitRange", "", "v1", "limitranges")
SECRET: Final = Kind("Secret", "", "v1", "secrets")
DEPLOYMENT: Final = Kind("Deployment", "apps", "v1", "deployments")
LEASE: Final = Kind("Lease", "coordination.k8s.io", "v1", "leases")
PRIORITY_CLASS: Final = Kind("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)
CRD: Final = Kind(
    "CustomResourceDefinition", "apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False
)
# Requests for information, which the API server does not store.
TOKEN_REVIEW: Final = Kind("TokenReview", "authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
LOCAL_ACCESS_REVIEW: Final = Kind("LocalSubjectAccessReview", "authorization.k8s.io", "v1", "localsubjectaccessreviews")
ACCESS_REVIEW: Final = Kind(
    "SubjectAccessReview", "authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False
)
