"""The parts of the page as HTML: pure functions of a board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from diflow.server.page import amounts
from diflow.server.page.board import FILTERS, Board, JobLine, NodeLine, Opened, Query, QueueLine, Totals
from diflow.server.page.drawing import bar, chart, clock, colour, spark
from diflow.server.page.facts import DEFAULT_QUEUE, TaskFacts
from diflow.server.page.markup import Child, Markup, el, join
from diflow.state.status import ENDED

# A sign beside the colour, for those who cannot tell colours, and for print.
_SIGNS: Final = {
    "Pending": "○", "Starting": "◔", "Running": "●", "Restarting": "↻", "Rescheduling": "⇄", "Succeeded": "✓",
    "Failed": "✕", "Unknown": "?",
}  # fmt: skip
_LIVE: Final = ("Running", "Starting", "Restarting", "Rescheduling", "Pending", "Unknown")
_STEPS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old what the caches keep is. `trouble` says why they are not up to date, "" if they are.

    `is_synced`: everything has been read once. `is_stale`: too old to be answered with (the API answers 503 then).
    """

    age_seconds: float = 0.0
    is_synced: bool = True
    is_stale: bool = False
    trouble: str = ""


def content(board: Board, freshness: Freshness, *, now: float, argo_url: str = "") -> Markup:
    """All that changes while the page is looked at. `now` is in seconds since 1970, `argo_url` that of the Argo UI."""
    return join(
        _staleness(freshness, now),
        _nothing(board) if board.permissions.namespaces is not None and not board.permissions.namespaces else None,
        _overview(board),
        _opened(board.opened, board.query, now=now, argo_url=argo_url) if board.opened else _missing(board.query),
        _queue(board, now),
        _jobs(board, now),
        _nodes(board, now),
    )


def age(total: float) -> str:
    """How long, as kubectl tells it: 45s, 12m, 3h20m, 5d."""
    whole = max(0, int(total))
    for i, (size, unit) in enumerate(_STEPS):
        if whole >= size:
            count, rest = divmod(whole, size)
            small = _STEPS[i + 1] if i + 1 < len(_STEPS) else None
            if small and count < 10 and rest >= small[0]:
                return f"{count}{unit}{rest // small[0]}{small[1]}"
            return f"{count}{unit}"
    return "0s"


def rate(value: float | None) -> str:
    """Samples a second: `340`, `12.5k`."""
    if value is None:
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}/s" if value < 1e12 else "> 1000G/s"
    return f"{value:.3g}/s"


def argo_link(base: str, namespace: str, workflow: str) -> str:
    """The address of a Workflow in the Argo UI, "" if there is no usable base."""
    if urlsplit(base).scheme not in ("http", "https"):
        return ""
    return f"{base.rstrip('/')}/workflows/{_quoted(namespace)}/{_quoted(workflow)}"


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="replace")


def _staleness(freshness: Freshness, now: float) -> Markup | None:
    if not freshness.is_synced:
        return el(
            "p", el("strong", "Starting."), " The cluster has not been read yet. ", freshness.trouble, class_="banner"
        )
    if not freshness.is_stale:
        return None
    return el(
        "p",
        el("strong", f"Out of date: this was so {age(freshness.age_seconds)} ago"),
        f" ({clock(now - freshness.age_seconds)}). The Kubernetes API says nothing",
        f": {freshness.trouble}" if freshness.trouble else ".",
        id="stale", class_="banner bad", role="alert",
    )  # fmt: skip


def _nothing(board: Board) -> Markup:
    return el(
        "p",
        el("strong", "You may see no jobs."),
        " They are shown to whoever may list Workflows (workflows.argoproj.io) in their namespace",
        "." if board.permissions.nodes else ", and nodes to whoever may list nodes.",
        class_="banner",
    )


def _overview(board: Board) -> Markup:
    totals = board.totals
    active = sum(n for phase, n in totals.phases.items() if phase not in ENDED)
    tiles = [
        _tile("Jobs", str(active), "active", _counts(totals)),
        _tile(
            "Replicas", str(totals.observed), f"of {totals.granted} granted run", f"{totals.wanted} asked for at most",
            part=(totals.observed, totals.granted),
        ),
        _tile(
            "Queue", str(totals.waiting), "job waits" if totals.waiting == 1 else "jobs wait",
            "in order below" if totals.waiting else "nothing waits",
        ),
    ]  # fmt: skip
    if board.permissions.nodes:
        for name in board.resources[:2]:
            used, room = totals.used.get(name, 0.0), totals.allocatable.get(name, 0.0)
            tiles.append(
                _tile(
                    amounts.short(name),
                    amounts.text(name, used),
                    f"of {amounts.text(name, room)} held",
                    f"{amounts.text(name, max(room - used, 0))} free",
                    part=(used, room),
                )
            )
        down = totals.nodes - totals.nodes_ready
        tiles.append(
            _tile(
                "Nodes", str(totals.nodes_ready), f"of {totals.nodes} ready",
                f"{down} not ready" if down else "all are well", bad=down > 0,
            )
        )  # fmt: skip
    return el("section", el("h2", "Overview", class_="unseen"), el("ul", *tiles, class_="tiles"), id="overview")


def _counts(totals: Totals) -> str:
    parts = [f"{n} {phase.lower()}" for phase in _LIVE if (n := totals.phases.get(phase))]
    return ", ".join(parts) or "none that has not ended"


def _tile(
    name: str, number: str, beside: str, below: str, *, part: tuple[float, float] | None = None, bad: bool = False
) -> Markup:
    meter = None
    if part is not None:
        share = min(1.0, part[0] / part[1]) if part[1] > 0 else 0.0
        meter = el(
            "svg", el("rect", x=0, y=0, width=100, height=4, class_="free"),
            el("rect", x=0, y=0, width=f"{share * 100:.1f}", height=4, class_="meter"),
            class_="thin", viewBox="0 0 100 4", preserveAspectRatio="none", aria_hidden="true",
        )  # fmt: skip
    return el(
        "li", el("span", name, class_="label"), el("span", el("b", number), " ", beside), meter,
        el("span", below, class_="bad-text" if bad else "dim"),
    )  # fmt: skip


def _pill(phase: str) -> Markup:
    return el(
        "span", el("span", _SIGNS.get(phase, "?"), aria_hidden="true"), " ", phase, class_=f"pill {phase.lower()}"
    )


def _open(line: JobLine, query: Query) -> Markup:
    job = line.facts
    return el(
        "a",
        el("span", "", class_=f"chip {colour(line.colour)}", aria_hidden="true") if line.colour >= 0 else None,
        job.name,
        href=f"{query.link(job=job.key)}#job",
        class_="job",
    )


def _tags(line: JobLine) -> Markup:
    job = line.facts
    return el(
        "span", job.namespace, f" · queue {job.queue}" if job.queue != DEFAULT_QUEUE else None,
        join(" · ", el("span", "high priority", class_="high")) if job.priority == "high" else None,
        " · preemptible" if job.is_preemptible else None,
        class_="dim small",
    )  # fmt: skip


def _queue(board: Board, now: float) -> Markup | None:
    if not board.queue:
        return None
    rows = [_queue_row(line, board.query, now) for line in board.queue]
    more = board.totals.waiting - len(board.queue)
    seen = " Only jobs that you may see are counted." if board.permissions.namespaces is not None else ""
    return el(
        "section",
        el("h2", "Queue ", el("span", board.totals.waiting, class_="count")),
        el("p", f"Jobs without a place, the urgent first, then the older.{seen}", class_="dim"),
        _table(
            "Jobs that wait, with their reasons",
            "queue",
            ["Job", "Queue", "Priority", "Asks for", "Waits", "Reason"],
            rows,
        ),
        el("p", f"and {more} more", class_="dim") if more else None,
        id="queue",
        aria_label="Queue",
    )


def _queue_row(line: QueueLine, query: Query, now: float) -> Markup:
    job = line.job.facts
    asks = ", ".join(f"{task.range_text} {task.name}" for task in job.tasks)
    return _row(
        f"q-{job.uid}",
        ("Job", join(_open(line.job, query), el("span", job.namespace, class_="dim small"))),
        ("Queue", join(job.queue, el("span", f" #{line.place}", class_="dim"))),
        ("Priority", el("span", job.priority, class_="high" if job.priority == "high" else None)),
        ("Asks for", asks or "–"),
        ("Waits", age(now - job.submitted)),
        ("Reason", line.reason),
    )


def _jobs(board: Board, now: float) -> Markup:
    rows = [_job_row(line, board.query, now) for line in board.jobs]
    body: Child = None
    if rows:
        head: list[Child] = [
            "Job", "Phase", join("Replicas ", el("span", "run / granted / asked", class_="dim small")), "Over time",
            "Speed", "Restarts", "Age",
        ]  # fmt: skip
        body = _table(
            "Jobs, those that hold nodes first, then those that wait, then the ended ones", "jobs", head, rows
        )
    elif board.query.is_narrowed:
        body = el("p", "No job is like that. ", el("a", "Show all", href="./"), class_="empty")
    else:
        body = el("p", "There are no jobs. ", el("code", "diflow submit job.yaml"), " starts one.", class_="empty")
    return el(
        "section",
        el("h2", "Jobs ", el("span", board.jobs_found, class_="count")),
        _filter(board),
        body,
        _key() if rows else None,
        _pages(board.query, "page", min(board.query.page, board.jobs_pages), board.jobs_pages, "jobs"),
        id="jobs",
        aria_label="Jobs",
    )


_GRANTED: Final = (
    "granted: the places that the job’s Workflow names. Whoever may change the Workflow can write them; only the "
    "allocator can verify that it gave them, and it believes no others."
)


def _key() -> Markup:
    return el(
        "p",
        el("span", "", class_="chip runkey"), "replicas that run ",
        el("span", "", class_="chip waitkey"), "pods that wait or start ",
        el("span", "", class_="chip wantkey"), "asked for at most ",
        el("span", "numbers: run / granted / asked", class_="numkey", title=_GRANTED),
        class_="dim small key",
    )  # fmt: skip


def _job_row(line: JobLine, query: Query, now: float) -> Markup:
    job = line.facts
    end = job.finished or now
    begin = job.history.steps[0].at if job.history.steps else job.submitted
    words = (
        f"{line.observed} replicas run, {line.granted} granted, {line.asked_text} asked for; peak {job.history.peak}"
    )
    over = spark(job.history, wanted=0 if job.has_ended else line.wanted, begin=begin, end=end, words=words)
    times = "once" if job.restarts == 1 else f"{job.restarts} times"
    return _row(
        f"j-{job.uid}",
        ("Job", join(_open(line, query), _tags(line))),
        ("Phase", join(_pill(job.phase), el("span", _said(line), class_="said", title=_said(line)))),
        ("Replicas", [_task(task, has_ended=job.has_ended) for task in job.tasks] or "–"),
        ("Over time", over),
        ("Speed", join(rate(job.speed), _progress(job.progress))),
        (
            "Restarts",
            el("span", str(job.restarts), title=f"restarted {times}; backoffLimit {job.backoff_limit}",
               class_="bad-text" if job.restarts else None),
        ),
        ("Age", _age(line, now)),
    )  # fmt: skip


def _said(line: JobLine) -> str:
    job = line.facts
    if job.waits and job.why and job.why not in job.message:
        return job.why
    if line.trouble and not job.has_ended and line.trouble not in job.message:
        return f"{job.message}; {line.trouble}"
    return job.message


def _progress(progress: float | None) -> Markup | None:
    return el("span", f"{progress:.0%} done", class_="dim small block") if progress is not None else None


def _age(line: JobLine, now: float) -> Markup:
    job = line.facts
    if not job.finished:
        return el("span", age(now - job.submitted), title=f"submitted {clock(job.submitted)}")
    return join(
        el("span", age(job.finished - job.submitted), title=f"submitted {clock(job.submitted)}"),
        el("span", f"ended {age(now - job.finished)} ago", class_="dim small block"),
    )


def _task(task: TaskFacts, *, has_ended: bool) -> Markup:
    if has_ended:
        return el(
            "span",
            el("span", task.name, class_="task"),
            " ",
            el("span", task.range_text, class_="num dim"),
            class_="block",
        )
    short = task.observed < task.granted
    numbers = join(
        el("b", task.observed, class_="warn-text" if short else None), f" / {task.granted} / {task.range_text}"
    )
    return el("span", el("span", task.name, class_="task"), " ", el("span", numbers, class_="num"), class_="block")


def _filter(board: Board) -> Markup:
    query = board.query

    def choice(name: str, label: str, every: str, options: Sequence[str], chosen: str) -> Markup:
        given = options if chosen in options or not chosen else (*options, chosen)
        return el(
            "label", el("span", label, class_="unseen"),
            el(
                "select", el("option", every, value=""),
                *(el("option", option, value=option, selected=option == chosen) for option in given),
                name=name, autocomplete="off",
            ),
        )  # fmt: skip

    return el(
        "form",
        el(
            "label", el("span", "Name", class_="unseen"),
            el("input", type="search", name="q", value=query.text, placeholder="Name or namespace", autocomplete="off",
               maxlength=128),
        ),
        choice("phase", "Phase", "all phases", FILTERS, query.phase),
        choice("namespace", "Namespace", "all namespaces", board.namespaces, query.namespace),
        choice("queue", "Queue", "all queues", board.queues, query.queue),
        el("button", "Filter", type="submit"),
        el("a", "Show all", href="./") if query.is_narrowed else None,
        id="filter", role="search", method="get", action="./", aria_label="Filter jobs",
    )  # fmt: skip


def _pages(query: Query, name: str, at: int, pages: int, what: str) -> Markup | None:
    if pages <= 1:
        return None
    anchor = f"#{what}"
    return el(
        "nav",
        el("a", "← back", href=query.link(**{name: at - 1}) + anchor) if at > 1 else el("span", "← back", class_="dim"),
        el("span", f"page {at} of {pages}"),
        el("a", "next →", href=query.link(**{name: at + 1}) + anchor)
        if at < pages
        else el("span", "next →", class_="dim"),
        class_="pages",
        aria_label=f"Pages of {what}",
    )


def _missing(query: Query) -> Markup | None:
    if not query.job:
        return None
    return el(
        "section",
        el(
            "p",
            "There is no job ",
            el("b", query.job),
            " that you may see. ",
            el("a", "Close", href=query.link(job="")),
        ),
        id="job",
        class_="panel",
    )


def _opened(opened: Opened, query: Query, *, now: float, argo_url: str) -> Markup:
    line, job = opened.line, opened.line.facts
    end = job.finished or now
    begin = job.history.steps[0].at if job.history.steps else job.submitted
    link = argo_link(argo_url, job.namespace, job.workflow)
    command = f"argo get -n {job.namespace} {job.workflow}"
    wanted = 0 if job.has_ended else line.wanted
    top = max(job.history.peak, wanted, 1)
    return el(
        "section",
        el(
            "header",
            el("h2", el("span", "", class_=f"chip {colour(line.colour)}", aria_hidden="true"), job.name),
            _pill(job.phase),
            el("a", "Close", href=query.link(job=""), class_="close"),
        ),
        el("p", job.message) if job.message else None,
        _decision(line, now),
        el(
            "figure",
            el("div", el("span", top), el("span", "0"), class_="axis", aria_hidden="true"),
            chart(
                job.history, wanted=wanted, begin=begin, end=end,
                words=f"Replicas of {job.name} over time, by task; at most {job.history.peak}",
            ),
            el(
                "figcaption",
                el("span", clock(begin)),
                el(
                    "span",
                    *(
                        join(el("span", "", class_=f"chip t{i % 4}"), task, " ")
                        for i, task in enumerate(job.history.tasks)
                    ),
                    el("span", "", class_="chip waitkey"), "waits or starts ",
                    join(el("span", "", class_="chip roundkey"), "new round ") if job.history.rounds else None,
                    f"· at most {job.history.peak}",
                ),
                el("span", clock(end) if job.finished else "now"),
            ),
        ),
        el("dl", *_terms(line, now, link=link, command=command), class_="terms"),
        _table(
            "Replicas by task", "tasks", ["Task", "Run", "Granted", "Asked for"],
            [
                _row(
                    f"t-{task.name}", ("Task", task.name), ("Run", str(task.observed)), ("Granted", str(task.granted)),
                    ("Asked for", task.range_text),
                )
                for task in job.tasks
            ],
        ),
        _replicas(opened, now),
        id="job", class_="panel", aria_label="Job",
    )  # fmt: skip


def _decision(line: JobLine, now: float) -> Markup | None:
    job = line.facts
    if not job.why or job.has_ended:
        return None
    when = f" ({age(now - job.decided)} ago)" if job.decided else ""
    return el("p", el("b", "The allocator: "), job.why, el("span", when, class_="dim"))


def _terms(line: JobLine, now: float, *, link: str, command: str) -> list[Markup]:
    job = line.facts
    terms: list[tuple[str, Child]] = [
        ("Namespace", job.namespace),
        ("Queue", job.queue),
        ("Priority", job.priority),
        ("Preemptible", "yes" if job.is_preemptible else "no"),
        ("Submitted", f"{clock(job.submitted)} ({age(now - job.submitted)} ago)"),
        ("Ended", f"{clock(job.finished)} ({age(now - job.finished)} ago)" if job.finished else None),
        ("Restarts", f"{job.restarts} (backoffLimit {job.backoff_limit})"),
        ("Moves", str(job.reschedules)),
        ("Round", job.round),
        ("Speed", rate(job.speed) if job.speed is not None else None),
        ("Progress", f"{job.progress:.0%}" if job.progress is not None else None),
        ("On nodes", ", ".join(f"{node} ×{count}" for node, count in line.nodes[:12]) or None),
        ("In Argo", el("a", job.workflow, href=link, rel="noreferrer") if link else el("code", command)),
    ]
    return [el("div", el("dt", name), el("dd", value)) for name, value in terms if value not in (None, "")]


def _replicas(opened: Opened, now: float) -> Markup | None:
    if not opened.replicas:
        return None
    rows = [
        _row(
            f"p-{pod.name}",
            ("Replica", f"{pod.task}-{pod.index}"),
            ("Node", pod.node or "–"),
            ("State", _state(pod.phase, is_ready=pod.is_ready, is_terminating=pod.is_terminating)),
            ("Age", age(now - pod.created)),
            ("Waits for", pod.waiting),
        )
        for pod in opened.replicas
    ]
    more = opened.count - len(rows)
    return join(
        _table("Pods of this job", "pods", ["Replica", "Node", "State", "Age", "Waits for"], rows),
        el("p", f"and {more} more", class_="dim") if more else None,
    )


def _state(phase: str, *, is_ready: bool, is_terminating: bool) -> str:
    if is_terminating:
        return "stopping"
    return "ready" if is_ready else "starting" if phase == "Running" else phase.lower()


def _nodes(board: Board, now: float) -> Markup | None:
    if not board.permissions.nodes:
        return el("p", "Nodes are shown to whoever may list nodes.", class_="dim") if board.jobs else None
    cards = [_node(node, board, now) for node in board.nodes]
    note = (
        "What pods query for of each node."
        if board.all_pods
        else "What jobs' pods query for; other pods are not counted."
    )
    return el(
        "section",
        el("h2", "Nodes ", el("span", board.totals.nodes, class_="count")),
        el("p", note, class_="dim"),
        el("ul", *cards, class_="nodes") if cards else el("p", "There are no nodes.", class_="empty"),
        _pages(board.query, "nodes", min(board.query.nodes, board.nodes_pages), board.nodes_pages, "nodes"),
        id="nodes",
        aria_label="Nodes",
    )


def _node(node: NodeLine, board: Board, now: float) -> Markup:
    facts = node.facts
    state = facts.state
    if facts.since:
        state = f"{state} for {age(now - facts.since)}"
    bars = [
        el(
            "div",
            el("span", amounts.short(name), class_="label"),
            bar(node, name),
            el("span", f"{amounts.text(name, node.used.get(name, 0))} / {amounts.text(name, node.allocatable[name])}",
               class_="num"),
            class_="use",
        )
        for name in board.resources
        if name in node.allocatable
    ]  # fmt: skip
    jobs = [
        el(
            "a",
            el("span", "", class_=f"chip {colour(holder.colour)}", aria_hidden="true"),
            holder.key.partition("/")[2],
            el("span", f" ×{holder.replicas}", class_="dim"),
            href=f"{board.query.link(job=holder.key)}#job",
        )
        for holder in node.holders
        if holder.key
    ]
    others = next((holder for holder in node.holders if not holder.key), None)
    if others is not None:
        word = "pod" if others.replicas == 1 else "pods"
        jobs.append(el("span", el("span", "", class_="chip other"), f"{others.replicas} other {word}", class_="dim"))
    return el(
        "li",
        el(
            "h3",
            facts.name,
            el("span", state, class_="state bad-text" if not facts.is_ready else "state") if state != "ready" else None,
        ),
        *bars,
        el("p", *(jobs or [el("span", "no jobs", class_="dim")]), class_="holders"),
        id=f"n-{facts.name}",
        class_="node" if facts.is_ready else "node down",
    )


def _table(caption: str, class_: str, head: Sequence[Child], rows: Sequence[Markup]) -> Markup:
    # The roles are said: a table whose rows are drawn as cards, as on a phone, is none to a screen reader otherwise.
    return el(
        "table",
        el("caption", caption, class_="unseen"),
        el("thead", el("tr", *(el("th", cell, scope="col", role="columnheader") for cell in head), role="row"),
           role="rowgroup"),
        el("tbody", *rows, role="rowgroup"),
        class_=class_, role="table",
    )  # fmt: skip


def _row(id_: str, *cells: tuple[str, Child]) -> Markup:
    return el(
        "tr",
        *(
            el("td", value, role="cell", data_label=label, class_=f"is-{label.lower().replace(' ', '-')}")
            for label, value in cells
        ),
        id=id_,
        role="row",
    )
