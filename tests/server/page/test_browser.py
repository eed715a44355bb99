"""The status page in a real Chromium: what people see, on a wide screen and on a phone, while things change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from cluster.packages import require
from diflow.server.page import CacheSnapshot, Freshness, render
from tests.server.page_scene import NOW, MadeJob, changed, cluster_state, made_node, said, scene
from tests.server.page_serving import GOOD, NARROW, PATIENCE_SECONDS, Stage, on_a_socket

PHONE = {"width": 360, "height": 740}
WIDE = {"width": 1360, "height": 900}
# Records what the content policy blocked, and whether injected code ran.
_WATCH = """
addEventListener('securitypolicyviolation', (e) => {
  (window.stopped ||= []).push(e.violatedDirective + ' ' + e.blockedURI);
});
window.alert = () => { window.pwned = true; };
"""

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    require({"chromium": "chromium"}, print)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=_chromium(),
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            timeout=PATIENCE_SECONDS * 1000,
        )
        yield opened
        opened.close()


def _chromium() -> str:
    import shutil

    found = shutil.which("chromium")
    assert found, "chromium was installed and is not found"
    return found


@pytest.fixture(scope="module")
def served() -> Iterator[Stage]:
    with on_a_socket(Stage()) as stage:
        yield stage


@pytest.fixture
def stage(served: Stage) -> Stage:
    fresh = Stage()
    served.cluster, served.freshness, served.now = fresh.cluster, fresh.freshness, fresh.now
    served.down, served.unsure, served.visitors = False, False, fresh.visitors
    return served


Opener = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, stage: Stage) -> Iterator[Opener]:
    """Opens a path in a new window; signed in if a token is given. Nothing may have been stopped or run at the end."""
    contexts: list[tuple[BrowserContext, Page, list[str]]] = []

    def opened(path: str = "", *, token: str = GOOD, size: Any = WIDE, **given: Any) -> Page:
        context = browser.new_context(viewport=size, **given)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        if token:
            context.add_cookies([{"name": "diflow-token", "value": token, "url": stage.url, "httpOnly": True,
                                  "sameSite": "Strict"}])  # fmt: skip
        context.add_init_script(_WATCH)
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        contexts.append((context, page, errors))
        page.goto(stage.url + path)
        return page

    expect.set_options(timeout=PATIENCE_SECONDS * 1000)
    yield opened
    for context, page, errors in contexts:
        assert errors == []
        if not page.is_closed() and page.evaluate("1 + 1") == 2:
            assert page.evaluate("window.stopped || []") == [], "the content policy had to stop something"
            assert page.evaluate("window.pwned || false") is False
        context.close()


def rows(page: Page, table: str = "jobs") -> list[str]:
    return page.locator(f"table.{table} tbody tr a.job").all_inner_texts()


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def wait_until(found: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not found():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
def test_people_see_jobs_queue_and_nodes(open_page: Opener) -> None:
    page = open_page()
    assert len(rows(page)) == 10
    vision = page.get_by_role("row").filter(has=page.get_by_role("link", name="vision-resnet"))
    for words in ("Running", "6 / 6 / 2–8", "2.84k/s", "62% done", "3h10m"):
        expect(vision).to_contain_text(words)
    assert rows(page, "queue") == ["finetune-7b", "paused-run", "sweep-lr-3"]
    expect(page.get_by_role("region", name="Queue")).to_contain_text("start together or not at all")
    node = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="gpu-2"))
    expect(node.get_by_role("img", name="GPU: 6 of 8 held")).to_be_visible()
    expect(node).to_contain_text("language-13b ×4")
    expect(page.get_by_role("status")).to_have_text("live")


@pytest.mark.parametrize("width", [320, 360])
def test_a_phone_needs_no_scrolling_to_the_side_even_with_the_longest_names(
    open_page: Opener, stage: Stage, width: int
) -> None:
    long = "a-very-long-name-without-any-place-to-break-it-0123456789012345"
    given = scene()
    stage.cluster = CacheSnapshot(
        [
            said(job, name=f"{long}{i}", message="x" * 300, why="y" * 300, queue=long, task=long)
            for i, job in enumerate(given.jobs)
        ],
        [changed(p, waiting="z" * 300, host=long) for p in given.pods],
        [replace(n, name=n.name + long) for n in given.nodes],
    )  # fmt: skip
    page = open_page(f"?job=vision/{long}0", size={"width": width, "height": 700})
    expect(page.get_by_role("region", name="Job", exact=True)).to_be_visible()
    assert fits(page)
    assert fits(open_page("", token="", size={"width": width, "height": 700}))


def test_on_a_phone_the_jobs_are_cards_and_still_a_table_to_a_screen_reader(open_page: Opener) -> None:
    page = open_page(size=PHONE, has_touch=True)
    assert fits(page)
    table = page.get_by_role("table", name="Jobs, those that hold nodes first")
    assert table.get_by_role("row").count() == 11
    assert table.get_by_role("columnheader").count() == 7
    assert table.get_by_role("row").nth(1).get_by_role("cell").count() == 7
    row = page.locator("table.jobs tbody tr").first.bounding_box()
    assert row is not None
    assert row["width"] <= PHONE["width"]


def test_a_change_appears_without_a_reload_and_leaves_the_rest_alone(open_page: Opener, stage: Stage) -> None:
    page = open_page()
    page.evaluate("window.same = document.querySelector('#j-uid-rl-cartpole'); window.mark = 1")
    page.get_by_role("searchbox").focus()
    more = cluster_state([MadeJob("brand-new", {"w": 1}, submitted=0).pod("w", 0, made=0)]).jobs
    stage.cluster = replace(stage.cluster, jobs=[*stage.cluster.jobs, *more])
    expect(page.get_by_role("link", name="brand-new")).to_be_visible()
    assert page.evaluate("window.mark") == 1, "the page was not loaded again"
    assert page.evaluate("window.same === document.querySelector('#j-uid-rl-cartpole')")
    expect(page.get_by_role("searchbox")).to_be_focused()
    stage.cluster = replace(stage.cluster, jobs=[j for j in stage.cluster.jobs if j.name != "cartpole"])
    expect(page.locator("#j-uid-rl-cartpole")).to_have_count(0)


def test_a_lost_connection_is_said_and_comes_back_by_itself(open_page: Opener, stage: Stage) -> None:
    page = open_page()
    stage.down = True
    expect(page.get_by_role("status")).to_have_text("connection lost, trying again")
    assert len(rows(page)) == 10, "what was known stays"
    stage.cluster = cluster_state([MadeJob("after", {"w": 1})])
    stage.down = False
    expect(page.get_by_role("status")).to_have_text("live")
    expect(page.get_by_role("link", name="after")).to_be_visible()


def test_a_network_that_comes_back_is_used_at_once(open_page: Opener) -> None:
    page = open_page()
    page.context.set_offline(True)
    expect(page.get_by_role("status")).to_have_text("connection lost, trying again")
    page.context.set_offline(False)
    expect(page.get_by_role("status")).to_have_text("live")


def test_an_old_cache_is_said_while_it_is_old(open_page: Opener, stage: Stage) -> None:
    page = open_page()
    stage.freshness = Freshness(age_seconds=200, is_stale=True)
    expect(page.get_by_role("alert")).to_contain_text("Out of date: this was so 3m20s ago")
    expect(page.get_by_role("status")).to_have_text("out of date")
    stage.freshness = Freshness()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("status")).to_have_text("live")


def test_a_hidden_page_asks_for_nothing_until_it_is_looked_at(open_page: Opener, stage: Stage) -> None:
    page = open_page("", token="")
    page.clock.install()
    page.context.add_cookies([{"name": "diflow-token", "value": GOOD, "url": stage.url}])

    def asked() -> int:
        return stage.requests.count("GET /board")

    # On a slow machine the page may have asked before the clock is moved.
    before = asked()
    page.goto(stage.url)
    page.clock.run_for(500)
    wait_until(lambda: asked() > before)
    hide = "(value) => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => value});" \
        " document.dispatchEvent(new Event('visibilitychange')); }"  # fmt: skip
    expect(page.get_by_role("status")).to_have_text("live")
    page.evaluate(hide, True)
    before = asked()
    page.clock.run_for(60_000)
    assert asked() == before
    page.evaluate(hide, False)
    wait_until(lambda: asked() == before + 1)


def test_typing_into_the_filter_narrows_the_jobs_and_makes_an_address(open_page: Opener, stage: Stage) -> None:
    page = open_page()
    page.get_by_role("searchbox").type("resn")
    expect(page.locator("table.jobs tbody tr")).to_have_count(1)
    expect(page).to_have_url(f"{stage.url}?q=resn")
    expect(page.get_by_role("searchbox")).to_have_value("resn")
    page.reload()
    assert rows(page) == ["vision-resnet"]
    page.get_by_role("searchbox").fill("nothing-like-it")
    expect(page.get_by_text("No job is like that.")).to_be_visible()
    page.get_by_role("link", name="Show all").last.click()
    expect(page.locator("table.jobs tbody tr")).to_have_count(10)
    page.get_by_role("combobox", name="Phase").select_option("Failed")
    expect(page.locator("table.jobs tbody tr")).to_have_count(1)


def test_a_job_is_opened_with_its_history_and_its_replicas(open_page: Opener) -> None:
    page = open_page()
    page.get_by_role("link", name="vision-resnet").first.click()
    job = page.get_by_role("region", name="Job", exact=True)
    expect(job.get_by_role("img", name="Replicas of vision-resnet over time")).to_be_visible()
    assert job.locator("svg.chart path.round").count() == 4
    assert job.locator("table.pods tbody tr").count() == 6
    expect(job).to_contain_text("argo get -n vision vision-resnet")
    job.get_by_role("link", name="Close").click()
    expect(job).to_have_count(0)


def test_hostile_text_is_only_text(open_page: Opener, stage: Stage) -> None:
    bad = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'><b>"
    given = scene()
    jobs = [
        said(job, name=bad + str(i), message=bad, why=bad, task=bad, namespace=bad, queue=bad, priority=bad)
        for i, job in enumerate(given.jobs)
    ]
    pods = [changed(p, waiting=bad, name=bad) for p in given.pods]
    stage.cluster = CacheSnapshot(jobs, pods, [replace(n, name=bad + n.name) for n in given.nodes])
    page = open_page()
    assert len(rows(page)) == 10
    assert page.locator("main img, main script").count() == 0
    expect(page.locator("#jobs")).to_contain_text(bad)
    page.locator("table.jobs a.job").first.click()
    expect(page.get_by_role("region", name="Job", exact=True)).to_contain_text(bad)
    stage.cluster = replace(stage.cluster, jobs=[said(j, message=f"now {bad}", why="") for j in jobs])
    expect(page.locator("#jobs")).to_contain_text(f"now {bad}")
    assert page.locator("main img, main script").count() == 0


def test_people_sign_in_with_a_token_and_out_again(open_page: Opener) -> None:
    page = open_page("?phase=active", token="")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Token of a Kubernetes account").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not know this token")
    page.get_by_label("Token of a Kubernetes account").fill(NARROW)
    page.get_by_label("Token of a Kubernetes account").press("Enter")
    expect(page.get_by_role("link", name="cartpole").first).to_be_visible()
    assert sorted(rows(page)) == ["cartpole", "nightly-eval"]
    assert NARROW not in page.url
    kept = page.context.cookies()[0]
    assert (kept["httpOnly"], kept["sameSite"], kept["path"], kept["value"]) == (True, "Strict", "/", NARROW)
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.context.cookies() == []


def test_whose_token_ends_is_asked_to_sign_in(open_page: Opener, stage: Stage) -> None:
    page = open_page()
    stage.visitors = {}
    expect(page.get_by_role("alert")).to_contain_text("Your sign-in has ended")


def test_without_scripts_the_page_is_whole_and_loads_itself_again(
    open_page: Opener, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "_RELOAD_SECONDS", 1)
    page = open_page("", token="", java_script_enabled=False)
    page.get_by_label("Token of a Kubernetes account").fill(GOOD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("table.jobs tbody tr")).to_have_count(10)
    stage.cluster = cluster_state([MadeJob("newer", {"w": 1})])
    expect(page.get_by_role("link", name="newer")).to_be_visible()
    monkeypatch.setattr(render, "_RELOAD_SECONDS", 600)  # a page that loads itself again would interrupt `goto`
    expect(page.locator("meta[http-equiv=refresh]")).to_have_attribute("content", "600")
    page.goto(f"{stage.url}?q=nothing")
    expect(page.get_by_text("No job is like that.")).to_be_visible()


# Every element with text of its own: its colour against the nearest background behind it, as WCAG counts contrast.
_CONTRAST = """() => {
  const read = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return {rgb: [r, g, b], a};
  };
  const light = ({rgb}) => rgb.map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const poor = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || element.closest('svg, script, style, noscript') || !element.checkVisibility()) continue;
    let behind = element;
    while (behind && read(getComputedStyle(behind).backgroundColor).a === 0) behind = behind.parentElement;
    const [one, two] = [light(read(getComputedStyle(element).color)),
                        light(read(getComputedStyle(behind || document.body).backgroundColor))].sort((a, b) => b - a);
    const ratio = (one + .05) / (two + .05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${element.className}: ${element.textContent.slice(0, 30)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_by_day_and_by_night(open_page: Opener, scheme: str) -> None:
    page = open_page("?job=vision/diffusion", color_scheme=scheme)
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(v) for v in back[4:-1].split(",")) > 384) == (scheme == "light")
    assert page.evaluate(_CONTRAST) == []
    assert open_page("", token="", color_scheme=scheme).evaluate(_CONTRAST) == []


def test_who_wants_no_motion_gets_none(open_page: Opener) -> None:
    motion = "getComputedStyle(document.getElementById('live'), '::before').animationName"
    assert open_page(reduced_motion="reduce").evaluate(motion) == "none"
    assert open_page(reduced_motion="no-preference").evaluate(motion) == "pulse"


def test_the_page_has_landmarks_and_a_way_around_for_the_keyboard(open_page: Opener) -> None:
    page = open_page()
    for role in ("banner", "main", "contentinfo", "search"):
        expect(page.get_by_role(role)).to_have_count(1)
    assert page.title() == "diflow"
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the jobs")).to_be_focused()
    assert page.locator("html").get_attribute("lang") == "en"


@pytest.mark.slow
def test_a_thousand_jobs_on_two_hundred_nodes_stay_usable(open_page: Opener, stage: Stage) -> None:
    one = cluster_state([MadeJob("job", {"w": 1}).pod("w", 0, made=9, ready=9, node="n-0")], [made_node("n-0")])
    job, pod, node = one.jobs[0], one.pods[0], one.nodes[0]
    ids = range(1000)
    known = job.record
    many = [
        replace(
            known,
            identity=replace(known.identity, name=f"job-{i:04}", uid=f"u-{i}"),
            argo=replace(known.argo, created_seconds=NOW + i),
        )
        for i in ids
    ]
    read = pod.record
    pods = [
        replace(changed(pod, waiting="", name=f"p-{i}").record, job=f"{read.namespace}/job-{i:04}", owner=f"u-{i}")
        for i in ids
    ]
    stage.cluster = CacheSnapshot(
        [replace(job, record=one) for one in many],
        [replace(pod, record=replace(one, host=f"n-{i % 200}")) for i, one in enumerate(pods)],
        [replace(node, name=f"n-{i}") for i in range(200)],
    )
    page = open_page()
    expect(page.get_by_role("navigation", name="Pages of jobs")).to_contain_text("page 1 of 40")
    page.get_by_role("navigation", name="Pages of jobs").get_by_role("link", name="next").click()
    expect(page.get_by_role("navigation", name="Pages of jobs")).to_contain_text("page 2 of 40")
    assert rows(page)[0] == "job-0974"
    page.get_by_role("searchbox").fill("job-0007")
    expect(page.locator("table.jobs tbody tr")).to_have_count(1)
    expect(page.locator("#overview")).to_contain_text("1000 of 1600 held")
    assert page.evaluate("document.querySelectorAll('*').length") < 3000
