"""A process that waits for a stage until a test kills it: `python -m tests.tasks.stage_parent REQUEST.json`."""

import json
import logging
import sys
from pathlib import Path

from pydantic import TypeAdapter

from tasks.stage import run_stage
from trainer.config.engines import Engine

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    request = json.loads(Path(sys.argv[1]).read_text())
    engine: Engine = TypeAdapter(Engine).validate_python(request.get("engine", {"kind": "local"}))
    run_stage(
        request["stage"],
        request["arguments"],
        lambda update: None,
        logging.getLogger("parent"),
        request["ranks"],
        engine,
    )
