"""Kill jobs with random settings: `python -m tests.random_jobs [N [SEED]]`.

Draws settings for a small job of each kind until its schema accepts them. Trains it undisturbed in a local store, and
with kills and requested stops at random instants in another, half of the time on a real S3 server. Both stores must
hold the same except for checkpoints, no staging folder may be left, and `explain` must find nothing left to do. A job
may be refused once its data is known, such as for its number of steps. Prints the jobs, and what is wrong with its
settings.
"""

import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.processes import Running, start_warm
from tests.proof import tell
from tests.s3 import S3Server, s3_server
from tests.soak import differing, outcome
from tests.stops import send
from tests.support import small_values, with_changes, write_config, write_corpora
from tests.trainer.chats import chat_model, chat_values, write_chats
from tests.trainer.labelled_pairs import finetune_values, write_pairs
from tests.trainer.preferences import preference_values, write_preferences
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED, ConfigError
from trainer.config.files import validate_job
from trainer.config.kinds import KINDS, JobKind
from trainer.config.runs import RunJob
from trainer.pipelines.explain import explain_job
from trainer.records.sealed import read_sealed
from trainer.store.storage import Store

Settings = dict[str, list[Any]]
"""The values to draw from, by a setting's path, joined by two underscores."""

ON_S3 = 0.5
"""The share of the interrupted jobs whose store is on S3."""

CHANGED = 0.3
"""The share of the settings that a job changes."""

CHAMPION, CHECKPOINT = "models/best/champion", re.compile(r"^runs/[^/]+/checkpoints/step-")
MOST_KILLS = 3
"""A job is interrupted at least once, and at most this many times."""

REFUSED = "refused:"
DONE = ("reused", "left out")
"""What `explain` calls the stages of a finished job."""

LENGTHS: list[dict[str, Any]] = [
    *({"training__epochs": None, "training__max_steps": steps, "training__warmup_steps": 0} for steps in (1, 3, 8, 20)),
    {"training__epochs": 1, "training__max_steps": None, "training__warmup_steps": 0},
    {"training__epochs": 3, "training__max_steps": None, "training__warmup_steps": 0, "training__early_stopping": 1},
]

COMMON: Settings = {
    "training__global_batch": [3, 4, 12, 16],
    "training__micro_batch": [1, 2, 3],
    "training__optimizer": ["adafactor", "sgd", "muon"],
    "training__learning_rate": [1e-4, 1e-2],
    "training__weight_decay": [0.0, 0.1],
    "training__schedule": ["linear", "polynomial", "inverse_sqrt", "constant", "cosine_with_restarts"],
    "training__warmup_steps": [1, 2],
    "training__max_grad_norm": [None, 0.1],
    "training__precision": ["bf16"],
    "training__gradient_checkpointing": [True],
    "training__deterministic": [True],
    "training__seed": [1, 2**32 - 1],
    "training__evaluate_every": [1, 2, 5],
    "training__save_every": [1, 2, 3],
    "training__keep_last": [1, 3],
    "training__keep_epochs": [0, 1],
    "training__final": ["best"],
    "evaluation__batch": [1, 5],
    "model__attention": ["eager", "sdpa"],
    "promotion": [{"name": "best", "threshold": 0.0}, {"name": "best", "threshold": 1e9}],
}

OF_TUNING: Settings = {
    "training__group_by_length": [False],
    "model__lora": [{"rank": 2}, {"rank": 1, "dropout": 0.1, "publish": "adapter"}],
    "data__test": [None],
    "data__validation": [None],
}

OF_KIND: dict[str, Settings] = {
    "pretraining": {
        "model__config": [
            {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32},
            {"model_type": "mixtral", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
             "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2, "num_experts_per_tok": 1,
             "max_position_embeddings": 32},
        ],
        "data__validation_fraction": [0.0, 0.3],
        "data__tokenizer": [{"vocab_size": 300, "engine": "tokenizers"}, {"vocab_size": 257, "sample_bytes": 5000}],
        "data__shards": [{}, {"num_shards": 3}],
        "data__curation": [
            {"near": {"ngram": 3, "least_similarity": 0.6}}, {"exact": None, "transform": {"mask": ["email", "ip"]}},
            {"filters": [{"kind": "length", "least_bytes": 200}, {"kind": "gopher_repetition"}]},
        ],
        "training__context": [8, 31],
        "training__stride": [3, 8],
        "training__locality": [1],
        "training__alpha": [0.0, 1.0],
        "training__packing": ["best_fit"],
        "training__document_mask": [True, False],
        "evaluation__during_training": [None, 1],
        "evaluation__max_windows": [3],
        "evaluation__prompts": [[], ["a", "import os\n"]],
        "evaluation__temperature": [0.0],
        "evaluation__best_by": ["bits_per_byte"],
    },
    "fine-tuning": OF_TUNING | {
        "data__max_length": [8, 64],
        "training__class_weights": ["balanced", {"match": 2.0}],
        "training__label_smoothing": [0.1],
        "evaluation__best_by": ["f1", "accuracy"],
    },
    "instruction tuning": OF_TUNING | {
        "data__packing": [False],
        "data__context": [96],
        "evaluation__samples": [0, 1],
        "evaluation__best_by": ["perplexity"],
    },
    "preference tuning": OF_TUNING | {
        "training__loss": ["ipo", "simpo", "orpo"],
        "training__beta": [0.5],
        "evaluation__samples": [0, 1],
        "evaluation__best_by": ["accuracy", "margin"],
    },
}  # fmt: skip


class Jobs:
    """Data and models of small jobs of all kinds, in a folder, and how a job of a kind is written there."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        self.folder, self.server = folder, server
        self.env = {**server.env, "HEADRACE_CACHE": str(folder / "cache")}
        raw, model = write_corpora(folder / "raw"), chat_model(folder / "llama")
        pairs, chats = write_pairs(folder / "pairs"), write_chats(folder / "chats")
        preferences = write_preferences(folder / "preferences")
        self._values: dict[str, Callable[[Path], dict[str, Any]]] = {
            "pretraining": lambda store: small_values(raw, store),
            "fine-tuning": lambda store: finetune_values(pairs, store, model),
            "instruction tuning": lambda store: chat_values(chats, store, model),
            "preference tuning": lambda store: preference_values(preferences, store, model),
        }

    def draw(self, kind: JobKind, draw: random.Random) -> dict[str, Any]:
        """Random changes that the kind's schema accepts."""
        settings = COMMON | OF_KIND[kind.name]
        while True:
            changed = [name for name in settings if draw.random() < CHANGED]
            changes = {**draw.choice(LENGTHS), **{name: draw.choice(settings[name]) for name in changed}}
            with suppress(ConfigError):
                self.job(kind, changes, str(self.folder / "store"))
                return changes

    def job(self, kind: JobKind, changes: Mapping[str, Any], store: str) -> RunJob:
        """The job with these changes; raises `ConfigError` for settings that do not fit together."""
        values = with_changes(self._values[kind.name](Path()), {"store": store, **deepcopy(changes)})
        job: RunJob = validate_job(kind.schema, values, "random settings")
        return job


class Trial:
    """One job: trained undisturbed, then with interruptions."""

    def __init__(self, jobs: Jobs, kind: JobKind, draw: random.Random) -> None:
        self._draw, self._env = draw, jobs.env
        self.changes = jobs.draw(kind, draw)
        self._folder = Path(tempfile.mkdtemp(dir=jobs.folder))
        self.on_s3 = draw.random() < ON_S3
        killed = jobs.server.new_store() if self.on_s3 else str(self._folder / "killed")
        self._clean = jobs.job(kind, self.changes, str(self._folder / "clean"))
        self._killed = jobs.job(kind, self.changes, killed)
        self.kills = 0

    def run(self) -> str:
        """Return what is wrong, or nothing; if the job is refused, `REFUSED` and the reason."""
        began = time.monotonic()
        ended = self._start(self._clean).wait(600.0)
        if ended.status == EXIT_BAD_INPUT:
            return f"{REFUSED} {ended.stderr.strip().splitlines()[-1]}"
        if ended.status != 0:
            return f"ended with {ended.status}:\n{ended.stderr[-3000:]}"
        seconds = time.monotonic() - began
        for _ in range(self._draw.randint(1, MOST_KILLS)):
            if wrong := self._interrupt(self._draw.uniform(0.0, seconds)):
                return wrong
        ended = self._start(self._killed).wait(600.0)
        if ended.status != 0:
            return f"ended with {ended.status} after {self.kills} kills:\n{ended.stderr[-3000:]}"
        return "; ".join(self._compare())

    def _interrupt(self, after: float) -> str:
        """Interrupt the job after some seconds; return what is wrong with how it ended."""
        signum, running = self._draw.choice([signal.SIGKILL, signal.SIGTERM]), self._start(self._killed)
        time.sleep(after)
        send(running.pid, signum, group=False)
        ended = running.end_within(60.0)
        self.kills += ended.status != 0  # else it had finished before
        usual = {signal.SIGKILL: {-signal.SIGKILL, 0}, signal.SIGTERM: {EXIT_PREEMPTED, -signal.SIGTERM, 0}}[signum]
        return "" if ended.status in usual else f"{signum.name} ended it with {ended.status}:\n{ended.stderr[-3000:]}"

    def _compare(self) -> Iterator[str]:
        expected, found = _outcome(self._clean.store), _outcome(self._killed.store)
        if wrong := differing(found, expected):
            yield f"after {self.kills} kills, these differ: {', '.join(wrong)}"
        yield from (f"left behind: {file.key}" for file in Store(self._killed.store).walk(".staging"))
        for stage in explain_job(self._killed):
            if stage.verdict not in DONE:
                yield f"explain calls {stage.stage} {stage.verdict}: {'; '.join(stage.reasons)}"

    def _start(self, job: RunJob) -> Running:
        config = write_config(
            self._folder / f"{Path(job.store).name}.yaml", job.model_dump(mode="json", exclude_unset=True)
        )
        return start_warm(self._folder / "said", "trainer.__main__", config, env=self._env)


def _outcome(store: str) -> dict[str, Any]:
    """The contents of a store that must not depend on kills, with the moves of its champion without their times.

    Checkpoints are left out, as a requested stop saves one more, which takes the place of another.
    """
    champion = read_sealed(Store(store), CHAMPION) or {"moves": []}
    found = {name: each for name, each in outcome(store).items() if not CHECKPOINT.search(name)}
    return {**found, CHAMPION: [{**move, "time": None} for move in champion["moves"]]}


def main(number: int = 100, seed: int = 0) -> int:
    """Run the trials and print the figures; return 1 if anything went wrong."""
    seen, kills = Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="headrace-random-") as name, s3_server(Path(name)) as server:
        jobs = Jobs(Path(name), server)
        os.environ.update(jobs.env)
        for each in range(seed, seed + number):
            draw = random.Random(each)
            kind = draw.choice(KINDS)
            trial = Trial(jobs, kind, draw)
            wrong = trial.run()
            kills += trial.kills
            verdict = "refused" if wrong.startswith(REFUSED) else "wrong" if wrong else "right"
            seen[verdict] += 1
            print(f"{each} {kind.name}{' on S3' * trial.on_s3}: {wrong or 'the same'}", flush=True)
            if verdict == "wrong":
                print(f"  {json.dumps(trial.changes)}", flush=True)
    print(", ".join(f"{what} {count}" for what, count in sorted(seen.items())))
    tell(kills, seen["wrong"])
    return min(seen["wrong"], 1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
