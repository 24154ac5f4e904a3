"""The command line of each flow's module, `python -m flows.X`: a YAML file, `key=value` words, `--dry-run`, `--help`.

Prefect is already loaded here. The command `headrace` (command.py and commands/) does the same without loading it
first, and has more commands. Both call work.py.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from prefect import Flow

from flows.work import carry_out
from trainer.config.files import Job, add_config, add_verify, explain
from trainer.config.problems import setting_of_option


def main(
    flow: Flow[[Any], Any], schema: type[Job], show: Callable[[Job, Any], None], arguments: list[str] | None = None,
    needs: Callable[[Job], Any] | None = None,
) -> int:  # fmt: skip
    """Run a flow on this machine and print its results; return 0, 2 on bad input, 75 if it should be run again.

    `needs` is as in `FlowCommand`.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {flow.fn.__module__ if flow.fn.__module__ != '__main__' else 'flows.' + flow.fn.__name__}",
        description=flow.description,
        epilog="fields of the configuration:\n\n" + explain(schema),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config(parser)
    parser.add_argument("--dry-run", action="store_true", help="check everything and print the plan; start nothing")
    if "verify" in schema.model_fields:
        add_verify(parser)
    given = sys.argv[1:] if arguments is None else arguments
    if (meant := setting_of_option([schema], given, ["--dry-run", "--verify"])) is not None:
        parser.error(f"write settings as key=value, without dashes: {meant}")
    parsed = parser.parse_intermixed_args(arguments)
    words = [*parsed.overrides, *getattr(parsed, "verify", [])]
    return carry_out(schema, parsed.config, words, lambda: (flow, show), parsed.dry_run, needs=needs)
