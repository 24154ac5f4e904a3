"""Count the project's modules loaded by three activities: `python -m benchmarks.loaded_modules [--names]`.

They are: `python -m trainer` until the first optimizer step of a small job; commit and resume of a checkpoint; a raw
file to tokens, with curation. For the last two, the modules loaded by importing their code are counted.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from benchmarks.jobs import job, raw_corpora

PROJECT = ("flows", "tasks", "trainer")

TO_THE_FIRST_STEP = """
import sys
import trainer.__main__
from trainer.training import loop

def first_step(*_, **__):
    print(*sorted(sys.modules), file=sys.stderr)
    raise SystemExit(0)

loop.train_step = first_step
trainer.__main__.main(sys.argv[1:])
"""

IMPORTED = {
    "a checkpoint and its resume": ("trainer.training.saver", "trainer.training.restoring"),
    "a raw file to tokens, with curation": ("trainer.curation.curate", "trainer.data.tokenization"),
}


def loaded(program: str, *arguments: str) -> list[str]:
    """The project's modules, without packages, that a program prints on its last line of standard error."""
    ended = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    names = ended.stderr.strip().splitlines()[-1].split()
    packages = {name.rpartition(".")[0] for name in names}
    return [name for name in names if name.split(".")[0] in PROJECT and name not in packages]


def main(arguments: list[str]) -> int:
    """Print the counts; with --names, also the modules."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        raw_corpora(place / "raw")
        config = place / "job.yaml"
        values = job(place, max_steps=1, warmup_steps=0).model_dump(mode="json")
        config.write_text(yaml.safe_dump(values), encoding="utf-8")
        found = {"the command to the first step": loaded(TO_THE_FIRST_STEP, str(config))}
    for title, modules in IMPORTED.items():
        program = f"import sys, {', '.join(modules)}; print(*sorted(sys.modules), file=sys.stderr)"
        found[title] = loaded(program)
    for title, names in found.items():
        print(f"{len(names):4d}  {title}")
        if "--names" in arguments:
            print(*(f"      {name}" for name in names), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
