"""Whole documents: the page around what changes, and the page to sign in with.

One style sheet and one script, both inside the document and allowed by a nonce: a page that fetches nothing needs no
build, no cache and no second origin, and its content policy forbids all else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from diflow.server.page.markup import Child, Markup, el, join
from diflow.version import __version__

_HERE: Final = Path(__file__).parent
_STYLE: Final = Markup((_HERE / "page.css").read_text(encoding="utf-8"))
_SCRIPT: Final = Markup((_HERE / "page.js").read_text(encoding="utf-8"))
_RELOAD_SECONDS: Final = 10
_LOGO: Final = (
    ("M4 6h7v5h-7z", "#2f6db3"),
    ("M4 13h7v5h-7z", "#2f6db3"),
    ("M13 6h7v5h-7z", "#e08e0b"),
    ("M13 13h7v5h-7z", "#3d8f5f"),
)
_ICON: Final = Markup(
    "data:image/svg+xml,"
    + "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24'%3E"
    + "".join(f"%3Cpath d='{d}' fill='%23{fill[1:]}'/%3E" for d, fill in _LOGO)
    + "%3C/svg%3E"
)


def page(content: Markup, *, tag: str, nonce: str, name: str, is_old: bool, every_seconds: float) -> str:
    """The status page. `tag` is the entity tag of `content`, `name` who looks at it."""
    return _document(
        "diflow",
        el("a", "Skip to the jobs", href="#jobs", class_="skip"),
        el(
            "header",
            el("h1", _logo(), "diflow"),
            # Filled in by the script: without one the page is as old as its last reload.
            el("span", "", id="live", class_="live", role="status", aria_live="polite"),
            el(
                "div", el("span", name, title=name),
                el("form", el("button", "Sign out", type="submit"), method="post", action="sign-out"),
                class_="who",
            ),
        ),
        el("main", el("div", content, id="board", data_tag=tag, data_every=f"{every_seconds * 1000:.0f}")),
        el("footer", f"Signed in as {name} · diflow {__version__} · times are UTC · this page only reads"),
        el("script", _SCRIPT, nonce=nonce),
        nonce=nonce,
        reload=True,
        class_="old" if is_old else None,
    )  # fmt: skip


def sign_in(*, nonce: str, problem: str = "", is_open: bool = False) -> str:
    """The page to sign in with. `problem` says what was wrong before; `is_open`: nothing hides the token on its way."""
    return _document(
        "diflow: sign in",
        el("header", el("h1", _logo(), "diflow")),
        el(
            "main",
            el("h2", "Sign in"),
            el("p", problem, class_="banner bad", role="alert") if problem else None,
            el(
                "p", "This connection is not encrypted: whoever is on the way can read the token.", class_="banner"
            ) if is_open else None,
            el("p", "You see the jobs of the namespaces in which you may list Workflows."),
            el(
                "form",
                el("label", "Token of a Kubernetes account", for_="token"),
                el(
                    "input", type="password", id="token", name="token", required=True, autocomplete="off",
                    autofocus=True, spellcheck="false", autocapitalize="none", maxlength=3800,
                ),
                el("button", "Sign in", type="submit"),
                method="post", action="sign-in",
            ),
            el("p", "A token of a service account is made with:", class_="dim"),
            el("pre", el("code", "kubectl create token NAME --namespace NAMESPACE")),
            el(
                "p",
                "The cluster checks it with each request. Your browser keeps it until it expires, at most 12 hours, or "
                "until you sign out.",
                class_="dim small",
            ),
            class_="sign",
        ),
        nonce=nonce,
    )  # fmt: skip


def message(title: str, words: str, *, nonce: str, reload: bool = True) -> str:
    """A page that says only what went wrong. `reload`: it tries again by itself."""
    return _document(
        f"diflow: {title}",
        el("header", el("h1", _logo(), "diflow")),
        el("main", el("h2", title), el("p", words), el("p", el("a", "Try again", href="./")), class_="sign"),
        nonce=nonce,
        reload=reload,
    )


def _document(title: str, *body: Child, nonce: str, reload: bool = False, class_: str | None = None) -> str:
    refresh = el("meta", http_equiv="refresh", content=str(_RELOAD_SECONDS))
    return join(
        Markup("<!doctype html>"),
        el(
            "html",
            el(
                "head",
                el("meta", charset="utf-8"),
                el("title", title),
                el("meta", name="viewport", content="width=device-width, initial-scale=1"),
                el("meta", name="color-scheme", content="light dark"),
                el("meta", name="robots", content="noindex"),
                el("link", rel="icon", href=_ICON),
                el("noscript", refresh) if reload else None,
                el("style", _STYLE, nonce=nonce),
            ),
            el("body", *body, class_=class_),
            lang="en",
        ),
    )


def _logo() -> Markup:
    return el("svg", *(el("path", d=d, fill=fill) for d, fill in _LOGO), viewBox="3 5 18 14", aria_hidden="true")
