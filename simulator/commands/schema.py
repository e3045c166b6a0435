"""`schema`: the JSON Schema of a scenario."""

from __future__ import annotations

from simulator.commands.flags import AsJson
from simulator.console import print_json


def schema(as_json: AsJson = False) -> None:
    """JSON Schema of a scenario, for editors; always JSON."""
    from simulator.scenario import ScenarioFile

    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **ScenarioFile.model_json_schema()})
