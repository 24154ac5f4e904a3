"""The kinds of job, with a folder each. `KINDS` in config/kinds.py lists them with their schemas, which are in config/
or, for a newer kind, in its folder (`job.py`); the readers of their data are in data/.

In a folder, `kind.py` defines a `Kind` (see `kinds/kind.py`): what identifies a run, and where the other functions are:
the checks before work starts (`preflight.py`), the `Workload` of the training loop (`workload.py`), the measurement of
a model (there or in `evaluate.py`), and the texts of reports (`page.py`). The kinds that start from a pretrained model
share `tuning*.py`.
"""
