"""A rank that fetches a model of the hub which names a run, and prints the digest of its weights: `python -m
tests.trainer.training.fetching STORE NAME`.
"""

import sys

from trainer.models.pretrained import find_pretrained
from trainer.store.storage import Store
from trainer.training.rank_agreement import name_together
from trainer.training.runtime import leave_group, start_runtime

if __name__ == "__main__":
    store, model = Store(sys.argv[1]), sys.argv[2]
    runtime = start_runtime("fp32", "cpu")
    name_together(lambda: find_pretrained(store, model), runtime)
    print(find_pretrained(store, model).files["model.safetensors"])
    leave_group()
