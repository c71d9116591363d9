"""Reports of runs, checked against their schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema

import fdt

_SCHEMA = json.loads((Path(fdt.__file__).parent / "client" / "report.schema.json").read_text())


def read(path: Path) -> dict[str, Any]:
    """Returns a report.

    Raises:
        jsonschema.ValidationError: It has a field that the schema does not, lacks one, or has one of another type.
    """
    report: dict[str, Any] = json.loads(path.read_text())
    jsonschema.validate(report, _SCHEMA)
    return report
