"""The command `convert`: jobs of other programs as DIJobs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from diflow.cli.console import note, warn


def convert(
    source: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A PyTorchJob or a TrainJob of Kubeflow in YAML (- is standard input)."),
    ],
) -> None:
    """Print a job of Kubeflow as a DIJob. Needs no cluster.

    A PyTorchJob (kubeflow.org/v1), or a TrainJob (trainer.kubeflow.org/v1alpha1) with its runtime in the same file.
    What does not carry over is named in comments of the result, and on stderr.
    """
    from diflow.cli.loading import documents, tell_left  # noqa: PLC0415
    from diflow.common.errors import InvalidError  # noqa: PLC0415
    from diflow.dijob.migrate.convert import convert as converted  # noqa: PLC0415

    found = documents(source)
    try:
        made, left = converted(found)
    except InvalidError as error:
        raise InvalidError(error.message, path=f"{source}: {error.path}" if error.path else source) from None
    sys.stdout.write("---\n".join(one.text() for one in made))
    for one in made:
        for remark in one.remarks:
            warn(f"{source}: {remark}")
    tell_left(source, left)
    note("check the result with `diflow lint`")
