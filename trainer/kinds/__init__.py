"""The kinds of job: one folder per kind, for everything but its schema and its data. `KINDS` in config/kinds.py lists
them.

In a folder, `kind.py` defines a `Kind` (see `kinds/kind.py`): what identifies a run, and where the other functions are:
the checks before work starts (`preflight.py`), the `Workload` of the training loop (`workload.py`), the measurement of
a model (there or in `evaluate.py`), and the texts of reports (`page.py`). The kinds that start from a pretrained model
share `tuning*.py`.
"""
