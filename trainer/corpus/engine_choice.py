"""Which engine encodes a corpus: `gigatoken` only where it gives the same ids as `tokenizers` on sampled documents."""

import hashlib
import logging
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version

import numpy as np

from trainer.corpus.engines import ENGINES, tokenizers_engine
from trainer.models.tokenizer import TokenizerInfo
from trainer.records.sealed import recall_sealed, write_sealed
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

log = logging.getLogger(__name__)


def settle_engine(store: Store, corpus: str, wanted: str, tokenizer: TokenizerInfo, samples: Sequence[bytes]) -> str:
    """The engine to use, as `choose_engine` says; where it has approved the wanted one of all this before, that is remembered.

    What is remembered of a corpus is what its last samples were compared with: the text, the tokenizer, the libraries and the
    kind of machine.
    """
    place = f"cache/engine-{corpus}.json"
    versions = [version(name) for name in ENGINES]
    compared = fingerprint([wanted, versions, platform.machine(), tokenizer.sha256, *map(_digest, samples)])
    if (recall_sealed(store, place, "comparing engines again") or {}).get("approved") == compared:
        return wanted
    engine = choose_engine(wanted, tokenizer, samples)
    if engine == wanted != "tokenizers":
        write_sealed(store, place, {"approved": compared})
    return engine


def _digest(sample: bytes) -> str:
    return hashlib.blake2b(sample, digest_size=16).hexdigest()


def choose_engine(wanted: str, tokenizer: TokenizerInfo, samples: Iterable[bytes]) -> str:
    """The engine to use: the wanted one if its ids equal those of `tokenizers` on every sample, else `tokenizers`."""
    if wanted == "tokenizers":
        return wanted
    documents = list(samples)
    try:
        found = ENGINES[wanted](tokenizer)(documents)
    except Exception as error:  # whatever the engine cannot do, the reference engine can
        log.warning("engine %s cannot take this tokenizer (%s): using the slower `tokenizers`", wanted, error)
        return "tokenizers"
    expected = tokenizers_engine(tokenizer)(documents)
    for number, (got, reference) in enumerate(zip(found, expected, strict=True)):
        if not np.array_equal(got, reference):
            start = documents[number][:40]
            log.warning(
                "engine %s and `tokenizers` disagree on a sampled document (%r…): using the slower `tokenizers`", wanted, start
            )
            return "tokenizers"
    return wanted
