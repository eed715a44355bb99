"""`diflow` as a process: its start, Ctrl-C, broken pipes, and unexpected errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diflow.cli.main import code_of
from diflow.cli.reference import reference
from tests.cli.runner import Cli, run
from tests.record.seen import SeenJob

_ROOT = Path(__file__).parents[2]


def start(diflow: Cli, *args: str) -> subprocess.Popen[str]:
    """Start `python -m diflow` with a kubeconfig of the fake server."""
    settings = {"KUBECONFIG": str(diflow.kubeconfig), "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "diflow", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
        cwd=diflow.folder,
        # A shell that starts the tests in the background has them ignore Ctrl-C, and their children with them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (no threads here)
    )


def interrupted(process: subprocess.Popen[str]) -> str:
    """The stderr of a process that is interrupted."""
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            continue  # Python drops an interrupt during a destructor; a user would press Ctrl-C again.
    raise AssertionError("it does not end")


def test_the_help_names_all_commands_and_the_exit_codes() -> None:
    result = run("--help")
    assert result.code == 0
    for command in ("submit", "get", "list", "describe", "logs", "watch", "wait", "retry", "doctor", "completion"):
        assert f"  {command} " in result.out
    assert "Exit codes: 0 done, 1 the job failed" in " ".join(result.out.split())


def complaint(code: str) -> str:
    """Run Python code in a process of its own; returns "" if it succeeds, and else what it writes to stderr."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, check=False, timeout=200)
    return done.stderr or f"exit code {done.returncode}" if done.returncode else ""


def test_the_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from diflow.cli.main import code_of; code_of(['--help']); "
        "heavy = {'rich', 'pydantic', 'hera', 'kubernetes', 'yaml', 'requests'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert complaint(code) == ""


def test_a_list_imports_neither_hera_nor_our_models() -> None:
    code = (
        "import sys; import diflow.jobs.lookup, diflow.record.status.status, diflow.cli.listing, diflow.cli.output; "
        "heavy = {'hera', 'diflow.dijob.model', 'rich'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    assert complaint(code) == ""


def test_the_commands_that_plan_import_nothing_that_logs() -> None:
    """With rich beside it, structlog takes a tenth of the time in which they are imported."""
    code = (
        "import sys; import diflow.allocator.inspect.explain, diflow.allocator.inspect.rows; "
        "heavy = {'structlog', 'rich.traceback', 'hera'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    assert complaint(code) == ""


def test_all_commands_know_the_policies_for_comparison_which_the_core_does_not_name() -> None:
    code = (
        "import sys; from diflow.allocator.policies.base import load_policy, policy_names; core = set(policy_names()); "
        "import diflow.cli.app; heavy = {'diflow.labs.baselines.optimus', 'diflow.labs.simulator'} & set(sys.modules); "
        "made = load_policy('tiresias').name, load_policy('optimus').name; "
        "sys.exit(0 if set(policy_names()) - core == set(made) and not heavy else str((core, made, heavy)))"
    )
    assert complaint(code) == ""


def test_no_command_is_answered_with_the_help() -> None:
    assert "Usage: diflow" in run().out + run().err


@pytest.mark.parametrize(
    "args", [("nope",), ("get",), ("list", "--nope"), ("list", "-o", "xml"), ("logs", "a", "-r", "x")]
)
def test_wrong_usage_ends_with_2_and_says_so_on_stderr(args: tuple[str, ...]) -> None:
    result = run(*args)
    assert (result.code, result.out) == (2, "")
    assert "Usage: diflow" in result.err


@pytest.mark.parametrize("args", [("watch", "job"), ("logs", "-f", "job"), ("wait", "job")])
def test_ctrl_c_detaches_and_leaves_the_job_alone(diflow: Cli, args: tuple[str, ...]) -> None:
    diflow.has(SeenJob("job", learner=1).all_ready())
    process = start(diflow, *args)
    deadline = time.monotonic() + 100
    while not [r for r in diflow.api.requests if r.query.get("watch")] and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    err = interrupted(process)
    assert process.returncode == 130
    assert "detached; the job continues: diflow watch job -n default" in err
    assert "Traceback" not in err
    assert {r.method for r in diflow.api.requests} == {"GET"}


def test_a_reader_that_has_enough_is_no_error(diflow: Cli) -> None:
    for i in range(300):
        diflow.has(SeenJob(f"job-{i:03}", learner=1))
    with start(diflow, "list", "-o", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, "")


def test_an_error_nobody_foresaw_is_one_line_unless_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("diflow.cli.listing.connect", broken)
    result = run("list")
    assert result.code == 1
    assert result.err == (
        "error: unexpected ZeroDivisionError: by zero (DIFLOW_DEBUG=1 shows where; please report it)\n"
    )
    monkeypatch.setenv("DIFLOW_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        code_of(["list"])


@pytest.mark.parametrize("debug", ["", "1"])
def test_ctrl_c_during_an_import_ends_with_130_also_where_python_wraps_it(
    monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    def wrapped(**_: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:  # as Python 3.11 does in __set_name__
            raise RuntimeError("Error calling __set_name__ on 'member_descriptor' instance") from error

    monkeypatch.setenv("DIFLOW_DEBUG", debug)
    monkeypatch.setattr("diflow.cli.listing.connect", wrapped)
    result = run("list")
    assert (result.code, result.out, result.err) == (130, "", "")


def test_ctrl_c_during_the_first_import_ends_with_130_and_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'diflow.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from diflow.cli.main import run\n"
        "run(['--help'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_reference_page_is_what_the_commands_say() -> None:
    page = (_ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == reference(), "run: python -m diflow.cli.reference > docs/cli.md"
