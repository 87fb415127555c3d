"""Reads the API server's table of RLHFJobs: the columns and cells of `kubectl get rlhfjobs`."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_NUMBERS = ("integer", "number")


class Listed(NamedTuple):
    """A job of a table; `cells`: by the column's name in lower case."""

    namespace: str
    name: str
    uid: str
    created: str
    cells: Mapping[str, Any]

    @property
    def id(self) -> str:
        return hashlib.sha256(self.uid.encode()).hexdigest()[:16]


def read_columns(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Names of the columns that `kubectl get` prints, after the namespace's, and whether each has numbers."""
    return [
        {"name": "Namespace", "isNumber": False},
        *(
            {"name": column["name"], "isNumber": column["type"] in _NUMBERS}
            for column in table.get("columnDefinitions", ())
            if not column.get("priority")
        ),
    ]


def read_rows(table: Mapping[str, Any]) -> list[Listed]:
    names = [column["name"].lower() for column in table.get("columnDefinitions", ())]
    rows = []
    for row in table.get("rows") or ():
        metadata = row["object"]["metadata"]
        rows.append(
            Listed(
                namespace=metadata["namespace"],
                name=metadata["name"],
                uid=metadata["uid"],
                created=metadata["creationTimestamp"],
                cells=dict(zip(names, row["cells"], strict=False)),
            )
        )
    return rows


def summarize(job: Listed, columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A job as the list of runs has it, with its cells in the order of the columns."""
    cells = {**job.cells, "namespace": job.namespace}
    return {
        "id": job.id,
        "name": job.name,
        "place": f"{job.namespace}/{job.name}",
        "namespace": job.namespace,
        "phase": str(cells.get("phase") or "Pending"),
        "reason": str(cells.get("reason") or ""),
        "algorithm": None,
        "step": _number(cells.get("step")),
        "steps": _number(cells.get("steps")),
        "reward": _number(cells.get("reward")),
        "loss": None,
        "heldOut": None,
        "gpus": _number(cells.get("gpus")),
        "cost": None,
        "restarts": _number(cells.get("restarts")),
        "started": job.created,
        "updated": None,
        "seconds": None,
        "cells": [_text(cells.get(column["name"].lower())) for column in columns],
    }


def _number(cell: Any) -> float | int | None:
    if isinstance(cell, int | float):
        return cell
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def _text(cell: Any) -> str:
    return "" if cell is None or cell == "<none>" else str(cell)
