"""The rules of Kubernetes for a pod's volumes beyond types (ValidateVolumes of the API server, v1.34)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from diflow.common.errors import InvalidError
from diflow.dijob.rules import syntax

_RESERVED: Final = frozenset({"var-run-argo", "tmp-dir-argo", "argo-env-config", "argo-staging", "input-artifacts"})
_HOST_PATHS: Final = (
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
)
_ACCESS_MODES: Final = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_FIELDS_IN_VOLUME: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.labels",
    "metadata.annotations",
    "metadata.uid",
)
_RESOURCES: Final = tuple(
    f"{kind}.{name}" for kind in ("limits", "requests") for name in ("cpu", "memory", "ephemeral-storage")
)
_DIVISORS: Final = frozenset({"0", "1", *(f"1{unit}" for unit in ("k", "M", "G", "T", "P", "E"))}) | {
    f"1{unit}i" for unit in "KMGTPE"
}
_TOKEN_SECONDS: Final = (600, 2**32)
# Sources without further checks, and the fields that each requires.
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "awsElasticBlockStore": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "azureFile": ("secretName", "shareName"),
    "cephfs": ("monitors",),
    "cinder": ("volumeID",),
    "fc": (),
    "flexVolume": ("driver",),
    "flocker": (),
    "gcePersistentDisk": ("pdName",),
    "gitRepo": ("repository",),
    "glusterfs": ("endpoints", "path"),
    "iscsi": ("targetPortal", "iqn"),
    "nfs": ("server", "path"),
    "persistentVolumeClaim": ("claimName",),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "quobyte": ("registry", "volume"),
    "rbd": ("monitors", "image"),
    "scaleIO": ("gateway", "system", "secretRef", "volumeName"),
    "storageos": ("volumeName",),
    "vsphereVolume": ("volumePath",),
}


def check_volumes(volumes: Sequence[Mapping[str, Any]], path: str) -> None:
    """Check volumes of valid types. Raises InvalidError with the path of the first invalid field."""
    seen: set[str] = set()
    for i, volume in enumerate(volumes):
        here = f"{path}[{i}]"
        name = volume.get("name", "")
        syntax.dns_label(name, f"{here}.name")
        syntax.once(seen, name, f"there is more than one volume named {name!r}", f"{here}.name")
        if name in _RESERVED:
            raise InvalidError(f"the volume's name {name!r} is used by Argo: choose another", path=f"{here}.name")
        _check_source({key: value for key, value in volume.items() if key != "name"}, here)


def _check_source(sources: Mapping[str, Any], path: str) -> None:
    if len(sources) > 1:
        raise InvalidError(f"has more than one source: {', '.join(sorted(sources))}", path=path)
    for kind, source in sources.items():  # without one, Kubernetes uses an emptyDir
        here = f"{path}.{kind}"
        for name in _REQUIRED.get(kind, ()):
            syntax.given(source.get(name), f"{here}.{name}")
        check = _CHECKS.get(kind)
        if check is not None:
            check(source, here)


def _empty_dir(source: Mapping[str, Any], path: str) -> None:
    if "sizeLimit" in source:
        syntax.quantity(source["sizeLimit"], f"{path}.sizeLimit")


def _host_path(source: Mapping[str, Any], path: str) -> None:
    syntax.given(source.get("path"), f"{path}.path")
    syntax.no_steps_up(source["path"], f"{path}.path")
    if source.get("type"):
        syntax.one_of(source["type"], _HOST_PATHS, f"{path}.type")


def _nfs(source: Mapping[str, Any], path: str) -> None:
    if not source["path"].startswith("/"):
        raise InvalidError("must be an absolute path", path=f"{path}.path")


def _config_map(source: Mapping[str, Any], path: str) -> None:
    syntax.given(source.get("name"), f"{path}.name")
    _files(source, path)


def _secret(source: Mapping[str, Any], path: str) -> None:
    syntax.given(source.get("secretName"), f"{path}.secretName")
    _files(source, path)


def _files(source: Mapping[str, Any], path: str) -> None:
    _default_mode(source, path)
    for i, item in enumerate(source.get("items", ())):
        syntax.given(item.get("key"), f"{path}.items[{i}].key")
        _file(item, f"{path}.items[{i}]")


def _default_mode(source: Mapping[str, Any], path: str) -> None:
    if "defaultMode" in source:
        syntax.file_mode(source["defaultMode"], f"{path}.defaultMode")


def _file(item: Mapping[str, Any], path: str) -> None:
    syntax.file_in_volume(item.get("path", ""), f"{path}.path")
    if "mode" in item:
        syntax.file_mode(item["mode"], f"{path}.mode")


def _downward_api(source: Mapping[str, Any], path: str) -> None:
    _default_mode(source, path)
    for i, item in enumerate(source.get("items", ())):
        here = f"{path}.items[{i}]"
        _file(item, here)
        if "fieldRef" in item and "resourceFieldRef" in item:
            raise InvalidError("has both fieldRef and resourceFieldRef: leave one", path=here)
        if "fieldRef" in item:
            check_field_ref(item["fieldRef"], _FIELDS_IN_VOLUME, f"{here}.fieldRef")
        elif "resourceFieldRef" in item:
            syntax.given(item["resourceFieldRef"].get("containerName"), f"{here}.resourceFieldRef.containerName")
            check_resource_field_ref(item["resourceFieldRef"], f"{here}.resourceFieldRef")
        else:
            raise InvalidError("needs a fieldRef or a resourceFieldRef", path=here)


def check_field_ref(ref: Mapping[str, Any], allowed: tuple[str, ...], path: str) -> None:
    """A field of the pod as a file or an environment variable."""
    if ref.get("apiVersion", "v1") not in ("v1", ""):
        raise InvalidError("must be v1", path=f"{path}.apiVersion")
    where = ref.get("fieldPath")
    syntax.given(where, f"{path}.fieldPath")
    assert isinstance(where, str)
    field, bracket, key = where.partition("['")
    if bracket and where.endswith("']"):
        syntax.one_of(field, ("metadata.labels", "metadata.annotations"), f"{path}.fieldPath")
        key = key.removesuffix("']")
        syntax.qualified_name(key.lower() if field.endswith("annotations") else key, f"{path}.fieldPath")
    else:
        syntax.one_of(where, allowed, f"{path}.fieldPath")


def check_resource_field_ref(ref: Mapping[str, Any], path: str) -> None:
    """A resource of a container as a file or an environment variable."""
    resource = ref.get("resource", "")
    if not resource.startswith(("limits.hugepages-", "requests.hugepages-")):
        syntax.one_of(resource, _RESOURCES, f"{path}.resource")
    divisor = ref.get("divisor")
    if divisor is None:
        return
    syntax.quantity(divisor, f"{path}.divisor")
    is_cpu = resource.endswith(".cpu")
    if divisor not in (("0", "1", "1m") if is_cpu else _DIVISORS):
        raise InvalidError("must be 1 or 1m" if is_cpu else "must be 1 of a unit, such as 1Mi", path=f"{path}.divisor")


def _projected(source: Mapping[str, Any], path: str) -> None:
    _default_mode(source, path)
    taken: set[str] = set()
    for i, part in enumerate(source.get("sources", ())):
        here = f"{path}.sources[{i}]"
        if len(part) > 1:
            raise InvalidError(f"has more than one source: {', '.join(sorted(part))}", path=here)
        for kind, inner in part.items():
            for where, file in _projected_files(kind, inner, f"{here}.{kind}"):
                syntax.once(taken, file, f"two sources write the file {file!r}", where)


def _projected_files(kind: str, source: Mapping[str, Any], path: str) -> Iterable[tuple[str, str]]:
    """The files of one source of a projected volume: (file name, path of the field that names it)."""
    if kind in ("configMap", "secret"):
        syntax.given(source.get("name"), f"{path}.name")
        _files(source, path)
    elif kind == "downwardAPI":
        _downward_api(source, path)
    elif kind == "serviceAccountToken":
        low, high = _TOKEN_SECONDS
        seconds = source.get("expirationSeconds", low)
        if not low <= seconds <= high:
            raise InvalidError(f"must be from {low} to {high}, not {seconds}", path=f"{path}.expirationSeconds")
        syntax.file_in_volume(source.get("path", ""), f"{path}.path")
        return ()
    elif kind == "clusterTrustBundle":
        if ("name" in source) == ("signerName" in source):
            raise InvalidError("needs a name or a signerName, and only one of them", path=path)
        syntax.file_in_volume(source.get("path", ""), f"{path}.path")
        return ((f"{path}.path", source["path"]),)
    return ((f"{path}.items[{i}].path", item["path"]) for i, item in enumerate(source.get("items", ())))


def _csi(source: Mapping[str, Any], path: str) -> None:
    driver = source.get("driver", "")
    if len(driver) > 63:
        raise InvalidError(f"has {len(driver)} characters, at most 63 are allowed", path=f"{path}.driver")
    syntax.dns_subdomain(driver.lower(), f"{path}.driver")
    if "nodePublishSecretRef" in source:
        syntax.dns_subdomain(source["nodePublishSecretRef"].get("name", ""), f"{path}.nodePublishSecretRef.name")


def _ephemeral(source: Mapping[str, Any], path: str) -> None:
    template = source.get("volumeClaimTemplate")
    here = f"{path}.volumeClaimTemplate"
    if template is None:
        raise InvalidError("is missing", path=here)
    metadata = template.get("metadata", {})
    for key in metadata:
        if key not in ("labels", "annotations"):
            raise InvalidError(
                "cannot be set: a claim that is made for a pod is named after it", path=f"{here}.metadata.{key}"
            )
    syntax.labels(metadata.get("labels", {}), f"{here}.metadata.labels")
    syntax.annotation_keys(metadata.get("annotations", {}), f"{here}.metadata.annotations")
    _claim(template.get("spec", {}), f"{here}.spec")


def _claim(spec: Mapping[str, Any], path: str) -> None:
    modes = spec.get("accessModes", ())
    syntax.given(modes, f"{path}.accessModes")
    for i, mode in enumerate(modes):
        syntax.one_of(mode, _ACCESS_MODES, f"{path}.accessModes[{i}]")
    if "ReadWriteOncePod" in modes and len(set(modes)) > 1:
        raise InvalidError("ReadWriteOncePod cannot stand beside another mode", path=f"{path}.accessModes")
    resources = spec.get("resources", {})
    storage = resources.get("requests", {}).get("storage")
    syntax.given(storage, f"{path}.resources.requests.storage")
    if not syntax.quantity(storage, f"{path}.resources.requests.storage"):
        raise InvalidError("must be above zero", path=f"{path}.resources.requests.storage")
    for kind in ("limits", "requests"):
        for name, amount in resources.get(kind, {}).items():
            syntax.quantity(amount, f"{path}.resources.{kind}.{name}")
    if spec.get("storageClassName"):
        syntax.dns_subdomain(spec["storageClassName"], f"{path}.storageClassName")
    if "volumeMode" in spec:
        syntax.one_of(spec["volumeMode"], ("Filesystem", "Block"), f"{path}.volumeMode")
    if "selector" in spec:
        check_selector(spec["selector"], f"{path}.selector")


def check_selector(selector: Mapping[str, Any], path: str) -> None:
    """A label selector."""
    syntax.labels(selector.get("matchLabels", {}), f"{path}.matchLabels")
    for i, rule in enumerate(selector.get("matchExpressions", ())):
        here = f"{path}.matchExpressions[{i}]"
        operator, values = rule.get("operator"), rule.get("values", ())
        syntax.one_of(operator, ("In", "NotIn", "Exists", "DoesNotExist"), f"{here}.operator")
        if operator in ("In", "NotIn"):
            syntax.given(values, f"{here}.values")
        elif values:
            raise InvalidError(f"cannot be given with {operator}", path=f"{here}.values")
        syntax.qualified_name(rule.get("key", ""), f"{here}.key")
        for j, value in enumerate(values):
            syntax.label_value(value, f"{here}.values[{j}]")


_CHECKS: Final[Mapping[str, Callable[[Mapping[str, Any], str], None]]] = {
    "configMap": _config_map,
    "csi": _csi,
    "downwardAPI": _downward_api,
    "emptyDir": _empty_dir,
    "ephemeral": _ephemeral,
    "hostPath": _host_path,
    "nfs": _nfs,
    "projected": _projected,
    "secret": _secret,
}
