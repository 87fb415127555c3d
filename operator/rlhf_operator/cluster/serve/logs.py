"""The operator's log: text or JSON lines, each with the job that it is about."""

import datetime
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pythonjsonlogger.json import JsonFormatter

from ...kube.api import Key

_job: ContextVar[Key | None] = ContextVar("job", default=None)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that move a terminal's cursor or end a line, except tab and newline."""
_FIELDS = ("levelname", "name", "message", "namespace", "job", "exc_info")
_NAMES = {"levelname": "level", "name": "logger", "exc_info": "exception"}


def set_up(log_format: str) -> None:
    """Configures logging to stderr, as `json` or `text`."""
    handler = logging.StreamHandler()
    handler.addFilter(_with_job)
    # kopf says so of its thread; the main one has handlers of the signals.
    handler.addFilter(lambda record: not str(record.msg).startswith("OS signals are ignored"))
    handler.setFormatter(
        _Json(_FIELDS, timestamp="time", rename_fields=_NAMES) if log_format == "json" else _Text()
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    # Only warnings: it logs every reconnection.
    logging.getLogger("kopf").setLevel(logging.WARNING)


@contextmanager
def about(key: Key) -> Iterator[None]:
    """Adds the job to every record logged inside the context."""
    token = _job.set(key)
    try:
        yield
    finally:
        _job.reset(token)


def _with_job(record: logging.LogRecord) -> bool:
    key = _job.get()
    if key is not None and not hasattr(record, "job"):
        record.namespace, record.job = key
    return True


class _Json(JsonFormatter):
    """JSON formatter with our own fields only: kopf's records contain whole objects."""

    def process_log_record(self, log_data: dict[str, object]) -> dict[str, object]:
        known = {"time", *(_NAMES.get(field, field) for field in _FIELDS)}
        return {name: value for name, value in log_data.items() if name in known and value is not None}


class _Text(logging.Formatter):
    """Text formatter; lines after a record's first are indented, since a job's pods choose what some messages say."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        where = f" [{record.__dict__.get('namespace')}/{record.job}]" if hasattr(record, "job") else ""
        text = _CONTROL.sub(lambda match: repr(match[0])[1:-1], super().format(record))
        return f"{at} {record.levelname}{where} {text}".replace("\n", "\n    ")
