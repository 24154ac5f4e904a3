"""Command lines of `headrace` one after the other in one new process, which loads the libraries once."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.processes import Ended

EACH = """
import contextlib, io, json, logging, sys
from flows.command import main
for words in json.load(sys.stdin):
    logging.root.handlers.clear()  # which the command before has directed to what it said
    status = None
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main(words)
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
print(json.dumps(sorted(sys.modules)))
"""


def run_each(commands: Sequence[Sequence[Any]], folder: Path = ROOT, **env: str) -> tuple[list[Ended], set[str]]:
    """How each command ended that was started in a folder, and the modules that were loaded for them."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    command, env = [sys.executable, "-c", EACH], {**os.environ, **env}
    ran = subprocess.run(command, cwd=folder, input=words, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    *ended, loaded = map(json.loads, ran.stdout.splitlines())
    return [Ended(*each) for each in ended], set(loaded)
