"""The page's routes: tokens in headers and cookies, cross-site forms, and security headers."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from diflow.server.page import Freshness
from diflow.server.page.session import lifetime
from tests.server.page_scene import NOW, MadeJob, cluster_state
from tests.server.page_serving import GOOD, NARROW, Stage, token

OWN = {"sec-fetch-site": "same-origin"}


def ask(stage: Stage, method: str, path: str, *, base: str = "http://127.0.0.1", **given: Any) -> httpx.Response:
    """One request, and its answer."""

    async def one() -> httpx.Response:
        transport = httpx.ASGITransport(app=stage.asgi)
        async with httpx.AsyncClient(transport=transport, base_url=base, follow_redirects=False) as client:
            return await client.request(method, path, **given)

    return asyncio.run(one())


def cookie(value: str = GOOD, *, name: str = "diflow-token") -> dict[str, str]:
    return {"cookie": f"{name}={value}"}


def sign_in(stage: Stage, given: str, **more: Any) -> httpx.Response:
    return ask(stage, "POST", "/sign-in", data={"token": given}, **{"headers": OWN, **more})


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_without_a_token_there_is_only_the_page_to_sign_in_with(stage: Stage) -> None:
    answer = ask(stage, "GET", "/")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "kubectl create token" in answer.text
    assert "vision" not in answer.text
    board = ask(stage, "GET", "/board")
    assert (board.status_code, board.content) == (401, b"")


def test_a_token_in_a_header_or_in_the_cookie_shows_what_it_may_see(stage: Stage) -> None:
    by_header = ask(stage, "GET", "/", headers={"authorization": f"Bearer {GOOD}"})
    by_cookie = ask(stage, "GET", "/", headers=cookie())
    for answer in (by_header, by_cookie):
        assert answer.status_code == 200
        assert "vision-resnet" in answer.text
        assert "system:serviceaccount:vision:maria" in answer.text
    narrow = ask(stage, "GET", "/", headers=cookie(NARROW))
    assert "cartpole" in narrow.text
    assert "vision-resnet" not in narrow.text
    assert "gpu-1" not in narrow.text


def test_two_viewers_at_the_same_moment_each_see_their_own(stage: Stage) -> None:
    stage.clock = lambda: 1.0  # type: ignore[method-assign]
    stage._app = stage.app()
    wide, narrow = (ask(stage, "GET", "/board", headers=cookie(given)) for given in (GOOD, NARROW))
    again = ask(stage, "GET", "/board", headers=cookie())
    assert "vision-resnet" in wide.text
    assert "vision-resnet" not in narrow.text
    assert again.text == wide.text


def test_the_token_is_never_in_the_page_nor_in_an_address(stage: Stage) -> None:
    for path in ("/", "/board", "/?job=vision/vision-resnet"):
        answer = ask(stage, "GET", path, headers=cookie())
        assert GOOD not in answer.text
        assert GOOD not in str(answer.headers)
    assert GOOD not in sign_in(stage, GOOD).headers["location"]
    assert ask(stage, "GET", f"/?token={GOOD}").status_code == 401


def test_signing_in_sets_a_cookie_that_no_script_and_no_other_site_gets(stage: Stage) -> None:
    answer = sign_in(stage, GOOD)
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    parts = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {"httponly", "samesite=strict", "path=/", "max-age=3600"} <= parts
    assert "secure" not in parts
    assert answer.headers["set-cookie"].startswith(f"diflow-token={GOOD};")


def test_with_tls_the_cookie_goes_back_over_tls_alone(stage: Stage) -> None:
    answer = sign_in(stage, GOOD, base="https://diflow.example")
    assert answer.headers["set-cookie"].startswith("__Host-diflow-token=")
    assert "secure" in answer.headers["set-cookie"].lower()
    page = ask(stage, "GET", "/", base="https://diflow.example", headers=cookie(name="__Host-diflow-token"))
    assert page.status_code == 200
    assert ask(stage, "GET", "/", base="https://diflow.example", headers=cookie()).status_code == 401


def test_the_cookie_ends_with_the_token_and_after_half_a_day_at_most() -> None:
    assert lifetime(token("a", expires=NOW + 60), now=NOW) == 60
    assert lifetime(token("a", expires=NOW - 60), now=NOW) == 0
    assert lifetime(token("a", expires=NOW + 1e9), now=NOW) == 12 * 3600
    for odd in ("opaque", "a.b.c", "a.e30.c", "a.eyJleHAiOiB0cnVlfQ.c", "a.eyJleHAiOiAxZTk5OX0.c"):
        assert lifetime(odd, now=NOW) == 12 * 3600


def test_a_token_that_the_cluster_does_not_know_signs_nobody_in(stage: Stage) -> None:
    for given in ("wrong", "", "x" * 3801, "two words and\nlines", "a;b"):
        answer = sign_in(stage, given)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "does not know this token" in answer.text


def test_a_token_may_be_pasted_with_the_breaks_of_a_terminal(stage: Stage) -> None:
    assert sign_in(stage, f"  {GOOD[:40]}\n{GOOD[40:]} \n").status_code == 303


def test_a_form_that_is_too_long_or_none_is_refused(stage: Stage) -> None:
    assert sign_in(stage, "x" * 20_000).status_code == 413
    assert ask(stage, "POST", "/sign-in", json={"token": GOOD}, headers=OWN).status_code == 401
    form = {**OWN, "content-type": "application/x-www-form-urlencoded"}
    for body in (b"\xff\xfe", b"token", b"&".join(b"a=1" for _ in range(50)), b"%00=%ff"):
        assert ask(stage, "POST", "/sign-in", content=body, headers=form).status_code == 401


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"sec-fetch-site": "cross-site"}, "another site"),
        ({"sec-fetch-site": "same-site"}, "another site"),
        ({"origin": "https://evil.example"}, "a page of evil.example, and this server was asked as 127.0.0.1"),
        ({"origin": "null"}, "Origin: null"),
        ({"origin": "http://127.0.0.1.evil.example"}, "a page of 127.0.0.1.evil.example"),
        ({"origin": "file://127.0.0.1"}, "another kind"),
        ({"origin": "http://[::1"}, "another kind"),
        ({"origin": "http://" + "a" * 5000}, "a page of " + "a" * 100 + ","),
        ({"origin": "http://<script>"}, "a page of &lt;script&gt;"),
        ({"origin": "https://evil.example", "referer": "http://127.0.0.1/"}, "a page of evil.example"),
        ({"referer": "https://evil.example/127.0.0.1"}, "a page of evil.example"),
        ({"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1"}, "another site"),
        ({}, "A script need not sign in: it sends Authorization: Bearer TOKEN"),
    ],
)
def test_forms_of_other_sites_are_refused_with_a_reason(
    stage: Stage, path: str, headers: dict[str, str], words: str
) -> None:
    answer = ask(stage, "POST", path, data={"token": GOOD}, headers={**headers, **cookie()})
    assert answer.status_code == 403
    assert words in answer.text
    assert 'http-equiv="refresh"' not in answer.text, "there is time to read it"
    assert "set-cookie" not in answer.headers


def test_a_browser_without_the_newer_header_is_known_by_its_origin(stage: Stage) -> None:
    assert sign_in(stage, GOOD, headers={"origin": "http://127.0.0.1"}).status_code == 303


def test_a_browser_that_says_no_origin_is_known_by_its_referer(stage: Stage) -> None:
    assert sign_in(stage, GOOD, headers={"referer": "http://127.0.0.1/sign-in"}).status_code == 303


def test_signing_out_takes_the_cookie_back(stage: Stage) -> None:
    answer = ask(stage, "POST", "/sign-out", headers={**OWN, **cookie()})
    assert answer.status_code == 303
    assert 'diflow-token=""' in answer.headers["set-cookie"]
    assert "max-age=0" in answer.headers["set-cookie"].lower()


def test_a_cookie_whose_token_has_ended_is_taken_back_with_a_word(stage: Stage) -> None:
    answer = ask(stage, "GET", "/", headers=cookie("old.old.old"))
    assert answer.status_code == 401
    assert "has ended" in answer.text
    assert "max-age=0" in answer.headers["set-cookie"].lower()


def test_where_the_cluster_cannot_be_asked_nobody_is_signed_out(stage: Stage) -> None:
    stage.unsure = True
    requests: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("GET", "/", {}),
        ("GET", "/board", {}),
        ("POST", "/sign-in", {"data": {"token": GOOD}}),
    )
    for method, path, more in requests:
        answer = ask(stage, method, path, headers={**OWN, **cookie()}, **more)
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
        assert "set-cookie" not in answer.headers


def test_the_board_is_sent_again_only_when_it_has_changed(stage: Stage) -> None:
    first = ask(stage, "GET", "/board", headers=cookie())
    tag = first.headers["etag"]
    again = ask(stage, "GET", "/board", headers={**cookie(), "if-none-match": f'"other", W/{tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert ask(stage, "GET", "/board?q=rl", headers={**cookie(), "if-none-match": tag}).status_code == 200
    assert ask(stage, "GET", "/board", headers={**cookie(NARROW), "if-none-match": tag}).status_code == 200
    stage.cluster = cluster_state([MadeJob("new", {"w": 1})])
    changed = ask(stage, "GET", "/board", headers={**cookie(), "if-none-match": tag})
    assert changed.status_code == 200
    assert "new" in changed.text


def test_the_page_has_the_tag_of_the_board_in_it(stage: Stage) -> None:
    tag = ask(stage, "GET", "/board?phase=Failed", headers=cookie()).headers["etag"]
    page = ask(stage, "GET", "/?phase=Failed", headers=cookie()).text
    assert f'data-tag="{tag.replace(chr(34), "&#34;")}"' in page


def test_a_page_from_an_old_cache_is_503_and_says_so(stage: Stage) -> None:
    stage.freshness = Freshness(age_seconds=100, is_stale=True)
    for path in ("/", "/board"):
        answer = ask(stage, "GET", path, headers=cookie())
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert "Out of date" in answer.text
    tag = ask(stage, "GET", "/board", headers=cookie()).headers["etag"]
    assert ask(stage, "GET", "/board", headers={**cookie(), "if-none-match": tag}).status_code == 503


@pytest.mark.parametrize(
    "call",
    [
        lambda stage: ask(stage, "GET", "/", headers=cookie()),
        lambda stage: ask(stage, "GET", "/"),
        lambda stage: ask(stage, "GET", "/board", headers=cookie()),
        lambda stage: ask(stage, "GET", "/board"),
        lambda stage: sign_in(stage, GOOD),
        lambda stage: sign_in(stage, "wrong"),
        lambda stage: sign_in(stage, GOOD, headers={}),
        lambda stage: ask(stage, "POST", "/sign-out", headers=OWN),
    ],
)
def test_every_answer_keeps_the_page_to_itself(stage: Stage, call: Callable[[Stage], httpx.Response]) -> None:
    headers = call(stage).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_each_page_has_a_nonce_of_its_own(stage: Stage) -> None:
    pages = [ask(stage, "GET", "/", headers=cookie()) for _ in range(2)]
    nonces = []
    for page in pages:
        nonce = page.headers["content-security-policy"].split("script-src 'nonce-")[1].split("'")[0]
        assert page.text.count(f'nonce="{nonce}"') == 2
        nonces.append(nonce)
    assert nonces[0] != nonces[1]
    assert " style=" not in pages[0].text
    assert " onclick=" not in pages[0].text


def test_long_answers_are_compressed_for_who_takes_that(stage: Stage) -> None:
    plain = ask(stage, "GET", "/board", headers={**cookie(), "accept-encoding": "identity"})
    packed = ask(stage, "GET", "/board", headers={**cookie(), "accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.text == plain.text
    assert len(gzip.compress(plain.content)) < len(plain.content) / 4


def test_only_reading_is_offered(stage: Stage) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(stage, method, "/board", headers={**OWN, **cookie()}).status_code == 405
        assert ask(stage, method, "/", headers={**OWN, **cookie()}).status_code == 405
    assert ask(stage, "GET", "/sign-out", headers=cookie()).status_code == 405


def test_who_opens_the_page_to_sign_in_with_and_is_signed_in_comes_to_the_jobs(stage: Stage) -> None:
    assert ask(stage, "GET", "/sign-in", headers=cookie()).headers["location"] == "./"
    assert "Sign in" in ask(stage, "GET", "/sign-in").text


def test_a_connection_that_hides_nothing_is_named_but_for_this_machine(stage: Stage) -> None:
    assert "not encrypted" in ask(stage, "GET", "/", base="http://10.0.0.7:8081").text
    assert "not encrypted" not in ask(stage, "GET", "/", base="http://localhost:8081").text
    assert "not encrypted" not in ask(stage, "GET", "/", base="https://diflow.example").text
