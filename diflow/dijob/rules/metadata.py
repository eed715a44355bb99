"""Rules of the labels and annotations that users set."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Final

from diflow.common import keys, limits, names
from diflow.common.errors import InvalidError
from diflow.dijob.rules import syntax

_DIFLOWS_DOMAINS: Final = ("diengine", "diflow", keys.API_GROUP)
_SYSTEM_DOMAINS: Final = ("argoproj.io", *_DIFLOWS_DOMAINS)
_FOR_USERS: Final = frozenset(
    {
        keys.ADAPTDL,
        keys.APPLICATION,
        keys.DITASK,
        keys.DLROVER,
        keys.RENDEZVOUS,
        keys.SENDS_TOKEN,
        keys.TITLE,
        keys.DESCRIPTION,
    }
)
_SUFFIX: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Of Kubernetes' own names: no vowels, which could make words, and nothing that looks like another character."""
_MOST_SUFFIX: Final = 5


def generated_name(prefix: object, *, path: str) -> str:
    """A new name that begins with `prefix` and ends like those that the API server makes of `generateName`: five
    letters and digits, by chance. Raises InvalidError."""
    if not isinstance(prefix, str) or not prefix:
        raise InvalidError("must be text with which the name begins, such as sweep-", path=path)
    longest = keys.LABEL_LIMIT - _MOST_SUFFIX
    return prefix[:longest] + "".join(secrets.choice(_SUFFIX) for _ in range(_MOST_SUFFIX))


def check_labels(given: Mapping[str, str], *, path: str) -> None:
    """Check a user's labels. Raises InvalidError if Kubernetes would reject one, and for reserved names."""
    syntax.labels(given, path)
    _check_owner(given, path)
    if keys.MANAGED_BY in given:
        raise InvalidError("is set by diflow: remove it", path=f"{path}.{keys.MANAGED_BY}")


def check_annotations(given: Mapping[str, str], *, path: str) -> None:
    """Check a user's annotations, as `check_labels` does."""
    syntax.annotation_keys(given, path)
    _check_owner([key for key in given if key not in _FOR_USERS], path)
    if keys.APPLICATION in given and not names.is_application(given[keys.APPLICATION]):
        raise InvalidError(
            "must be the name of an application, such as vision/resnet50: "
            f"up to {limits.MOST_APPLICATION_NAME} letters, digits, '-', '_', '.' and '/', of which the first and the "
            "last are a letter or digit",
            path=f"{path}.{keys.APPLICATION}",
        )


def is_of_diflow(key: str) -> bool:
    """Whether a label or an annotation has one of diflow's names, whoever may set it."""
    return _is_under(key, _DIFLOWS_DOMAINS)


def _is_under(key: str, domains: Iterable[str]) -> bool:
    domain = key.rpartition("/")[0].lower()
    return any(domain == known or domain.endswith(f".{known}") for known in domains)


def _check_owner(given: Iterable[str], path: str) -> None:
    """Reject keys under the domains of Argo and diflow, which both act on."""
    for key in given:
        domain = key.rpartition("/")[0].lower()
        if _is_under(key, _SYSTEM_DOMAINS):
            raise InvalidError(
                f"names under {domain}/ are set by {'Argo' if domain.endswith('argoproj.io') else 'diflow'}: "
                "choose a name of your own",
                path=f"{path}.{key}",
            )
