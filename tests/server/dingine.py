"""DI-engine's own client, from its wheel, in an environment with the versions of its time.

Only the modules of the client are imported (`dingine_calls`): DI-engine itself needs PyTorch.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

VERSION = "0.5.3"
_PACKAGES = (
    "flask==2.0.3", "werkzeug==2.0.3", "requests", "URLObject==2.4.3", "enum-tools", "easydict", "PyYAML",
)  # fmt: skip
_CACHE = Path(os.environ.get("DIFLOW_CACHE", str(Path.home() / ".cache" / "diflow"))) / f"di-engine-{VERSION}-2"
_HERE = Path(__file__).parent


def prepared() -> Path:
    """The folder with the client and the environment in which it runs; both are made once."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (_CACHE / "ready").exists():
            _make()
            (_CACHE / "ready").touch()
    return _CACHE


def parsed(environ: Mapping[str, str], **options: Any) -> dict[str, Any]:
    """What DI-engine's `k8s_parser` makes of the variables of a pod. It needs numpy alone, so it runs here."""
    path = prepared() / "code" / "ding" / "entry" / "cli_parsers" / "k8s_parser.py"
    spec = importlib.util.spec_from_file_location("k8s_parser", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with mock.patch.dict(os.environ, environ, clear=True):
        return dict(module.k8s_parser(**options))


def _make() -> None:
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    subprocess.run([sys.executable, "-m", "venv", str(_CACHE / "venv")], check=True)
    _python(*pip, "install", *_PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        _python(*pip, "download", "--no-deps", "--dest", folder, f"DI-engine=={VERSION}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            chosen = (
                "ding/interaction/",
                "ding/worker/coordinator/",
                "ding/entry/cli_parsers/k8s_parser",
                "ding/utils/k8s_helper",
                "ding/utils/lock_helper",
            )
            packed.extractall(_CACHE / "code", [name for name in packed.namelist() if name.startswith(chosen)])


def _python(*arguments: str) -> str:
    python = str(_CACHE / "venv" / "bin" / "python")
    # -P: the folder of the program, this one, has packages with names of the standard library's.
    done = subprocess.run([python, "-P", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def call(url: str, name: str, *calls: str) -> Sequence[str]:
    """Make these calls with an `OperatorServer` of the coordinator `name`, one after the other. Returns what each line
    of the program says: a JSON text for each call."""
    folder = prepared()
    return _python(str(_HERE / "dingine_calls.py"), str(folder / "code"), url, name, *calls).splitlines()


def coordinate(url: str) -> Sequence[str]:
    """Run a `CommCoordinator` (`dingine_coordinator`). Returns the JSON texts that it prints; flask prints, too."""
    folder = prepared()
    lines = _python(str(_HERE / "dingine_coordinator.py"), str(folder / "code"), url).splitlines()
    return [line for line in lines if line.startswith("[[")]
