"""Train without an orchestrator: `python -m trainer CONFIG.yaml [key=value ...]`, also under torchrun and accelerate.

Prepares the data if it is missing (on rank 0), starts or continues training, evaluates, and writes the report. A
configuration with `data.source` fine-tunes on labelled data, or with `data.task` chat or preference on conversations or
pairs of answers; any other pretrains on corpora.
"""

import argparse
import sys

from trainer.common.stopping import install_signal_handlers, leave
from trainer.common.streams import open_closed_streams


def main(arguments: list[str]) -> int:
    """Parse the command line, train, and return the exit status."""
    open_closed_streams()
    install_signal_handlers()  # before the libraries are imported, which takes seconds
    from trainer.common.process import loading, on_rank

    with loading():
        from trainer.config.files import add_config, add_verify, explain
        from trainer.config.kinds import KINDS

    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description=__doc__,
        epilog="\n\n".join(f"fields for {kind.name}:\n\n{explain(kind.schema)}" for kind in KINDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config(parser)
    add_verify(parser)
    parsed = parser.parse_intermixed_args(arguments)

    def work() -> None:
        with loading():
            from trainer.jobs import train

        train(parsed.config, *parsed.overrides, *parsed.verify)

    return leave(on_rank(work))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
