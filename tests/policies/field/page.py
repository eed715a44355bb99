"""Writes docs/field-cases.md from the table: `python -m tests.policies.field.page > docs/field-cases.md`."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable

from tests.policies.field.cases import CASES
from tests.policies.field.rows import Answer, Case, Count, End, Ends, NotAsked, Other
from tests.reports.table import kinds

_HEAD = """\
# Field cases

The tests of kube-batch and Volcano, put to the policies of diflow: {rows} rows in `tests/policies/field`. A row is a
small cluster with its queues and jobs, the result of the original, and the expected result of `fair`. Only numbers were
taken, and no text: nodes, weights, guarantees, caps, minimums, running and waiting pods, priorities, and which job
holds how much or is evicted in the end. This page is generated
(`python -m tests.policies.field.page > docs/field-cases.md`), and a test compares it with the table.

One pod of the original is one replica here. A group of n pods with a minimum of m is a job of m to n replicas that
desires n. Each pod requests cores, memory and one of a node's 110 `pods`, unless the original requests none on purpose
or makes `pods` scarce. The capacity plugin's `deserved` has no equivalent here; the nearest is the guarantee. Tests of
features that diflow does not have are left out; `tests/policies/field/cases.py` names them by file, with the reason.

No row may have a worse result than in the original: no job waits that runs there, and no more is evicted, except for
one of the reasons below. `fair` ([policies](policies.md)) agrees in {agree} rows and differs by choice in {differ}. In
each row it must also be at a fixed point after one cycle, and must evict no other job while the pods of its victims
terminate.

"""


def page() -> str:
    """The page as Markdown."""
    differing = [case for case in CASES if case.differs]
    parts = [
        _HEAD.format(rows=len(CASES), agree=len(CASES) - len(differing), differ=len(differing)),
        _sources(),
        "\n## Where fair differs by choice\n\nEach with the result of the original and of `fair`.\n",
        _grouped(
            (case.differs, f"{_ends(case, case.theirs)}; here {_ends(case, case.fair)}", case) for case in differing
        ),
        *_other("fit", [(case, case.fit) for case in CASES]),
        *_other("fair+goodput", [(case, case.together) for case in CASES]),
    ]
    return "".join([*parts, *_reports()])


_REPORTS = """
## Reports of users

What people have reported of training jobs on Kubernetes, tried on diflow in a lab (`tests/reports`): an allocator over
a fake cluster whose kube-scheduler knows taints, host ports, pod affinity, spread constraints, volumes and claims of
devices, and whose admission adds to pods and refuses some. Each row has what was seen in diflow at first, what is right
and is so now, and the test that holds it.
"""


def _reports() -> Iterable[str]:
    """The second section: the reports of users, by their cause."""
    yield _REPORTS
    for kind in kinds():
        yield f"\n### {kind.title}\n\n{kind.cause}\n\n"
        yield "| reports | input | seen at first | right | test |\n|---|---|---|---|---|\n"
        for row in kind.rows:
            yield f"| {row.reports} | {row.input} | {row.seen} | {row.right} | `{row.test}` |\n"


def _sources() -> str:
    files: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in CASES:
        issue = case.source.file.startswith("issue")
        files[case.source.project, "issues of its users" if issue else f"`{case.source.file}`"].append(case)
    lines = ["| project | file | rows | agree | differ by choice |", "|---|---|---|---|---|"]
    for (project, file), rows in files.items():
        differ = sum(bool(case.differs) for case in rows)
        lines.append(f"| {project} | {file} | {len(rows)} | {len(rows) - differ} | {differ} |")
    return "\n".join(lines) + "\n"


def _grouped(rows: Iterable[tuple[str, str, Case]]) -> str:
    """The reasons, each with its rows."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for reason, outcome, case in rows:
        by_reason[reason].append(f"- {case.name} ({case.source.project}, {case.source.case}): {outcome}")
    return "".join(f"\n**{reason}**\n\n" + "\n".join(lines) + "\n" for reason, lines in by_reason.items())


def _other(policy: str, answers: list[tuple[Case, Answer]]) -> Iterable[str]:
    others = [(answer.why, _ends(case, answer.ends), case) for case, answer in answers if isinstance(answer, Other)]
    not_asked = sum(isinstance(answer, NotAsked) for _, answer in answers)
    same = len(answers) - len(others) - not_asked
    yield f"\n## {policy}\n\nThe same as `fair` in {same} rows, something else in {len(others)}; "
    yield f"{not_asked} are about a setting that it has not.\n"
    yield _grouped(others)


def _ends(case: Case, ends: Ends) -> str:
    return " or ".join(_end(case, end) for end in ends)


def _end(case: Case, end: End) -> str:
    holds = [
        f"{name} {count if isinstance(count, int) else f'{count[0]} to {count[-1]}'}"
        for name, count in end.holds.items()
    ]
    nodes = [f"{job} on {' or '.join(sorted(names))}" for job, names in end.on.items()]
    evicted = case.evicted(end)
    lost = [f"evicted {evicted}"] if evicted else []
    return ", ".join(holds + nodes + lost)


def _count(count: Count) -> str:
    return str(count) if isinstance(count, int) else f"{count[0]} to {count[-1]}"


if __name__ == "__main__":
    sys.stdout.write(page())
