"""Checks the schedule of a CronWorkflow by Argo's rules: a cron expression of five fields, and a time zone."""

from __future__ import annotations

import difflib
import re
import zoneinfo
from typing import Final

from diflow.common.errors import InvalidError
from diflow.record import untrusted

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
# By Argo's rules (github.com/robfig/cron): 7 is not Sunday.
_FIELDS: Final[tuple[tuple[str, int, int, tuple[str, ...]], ...]] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 6, _DAYS),
)
_RANGE = re.compile(r"(?:[*?]|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>[0-9]{1,9}))?")


def check_schedule(schedule: str) -> None:
    """Check a cron expression. Raises InvalidError that names the invalid field."""
    given = schedule.split()
    if len(given) != len(_FIELDS):
        what = ", ".join(name for name, *_ in _FIELDS)
        raise InvalidError(
            f"{schedule!r} has {len(given)} fields, not the five of a cron expression ({what}): "
            "'0 * * * *' is every full hour",
            path="schedule",
        )
    for text, (name, low, high, words) in zip(given, _FIELDS, strict=True):
        for part in text.split(","):
            _check_part(part, name, low, high, words)


def check_timezone(timezone: str) -> None:
    """Check the name of a time zone. Raises InvalidError with a similar name."""
    known = zoneinfo.available_timezones()
    if not known or timezone in known:  # the system may not have the database
        return
    by_lower = {name.lower(): name for name in known}
    wanted = timezone.lower().replace(" ", "_")
    close = [by_lower[name] for name in difflib.get_close_matches(wanted, by_lower, n=1)]
    close = close or sorted(name for name in known if wanted and name.lower().endswith(f"/{wanted}"))[:1]
    hint = f"did you mean {close[0]}?" if close else "give one of the IANA database, such as Europe/Berlin or UTC"
    raise InvalidError(f"there is no time zone {timezone!r}: {hint}", path="timezone")


def _check_part(part: str, name: str, low: int, high: int, words: tuple[str, ...]) -> None:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise InvalidError(
            f"{part!r} is no {name}: write *, a number, a range as 1-5, or a step as */2", path="schedule"
        )
    numbers = [_number(text, low, words) for text in (match["low"], match["high"]) if text is not None]
    if any(number is None or not low <= number <= high for number in numbers):
        said = f", or {words[0]} to {words[-1]}" if words else ""
        raise InvalidError(f"{part!r} is no {name}: {low} to {high} are allowed{said}", path="schedule")
    if len(numbers) == 2 and (numbers[0] or 0) > (numbers[1] or 0):
        raise InvalidError(f"the range {part!r} of the {name} runs backwards", path="schedule")
    if match["step"] is not None and int(match["step"]) == 0:
        raise InvalidError(f"the step in {part!r} of the {name} cannot be 0", path="schedule")


def _number(text: str, low: int, words: tuple[str, ...]) -> int | None:
    number = untrusted.whole(text)
    if number is not None:
        return number
    return words.index(text.lower()) + low if text.lower() in words else None
