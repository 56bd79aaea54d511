"""The JSON schema of the settings file, as shipped beside this module for editors.

`python -m unabridged.agent.config_schema` writes it anew after a change of the settings.
"""

from __future__ import annotations

import json
from pathlib import Path

PATH = Path(__file__).with_name("settings.schema.json")


def generate() -> bytes:
    """The schema of the user's file, worked out from what reads it."""
    from .config import UserFile

    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **UserFile.model_json_schema(),
        "title": "Settings of Unabridged",
    }
    return json.dumps(schema, indent=2).encode("ascii") + b"\n"


def shipped() -> bytes:
    """The schema as it is installed."""
    return PATH.read_bytes()


if __name__ == "__main__":
    PATH.write_bytes(generate())
