"""The kinds of job, each whole in a folder, and the one table of them, `table.py`.

A folder says how a kind's jobs are looked at (`preflight.py`), what decides a run's outcome (`identity.py` or
`steps.py`), what it brings to the training loop (`workload.py`), how its model is measured (`measure.py`,
`evaluate.py`), and what pages tell of its runs (`page.py`); `kind.py` is its entry in the table, as `kinds/kind.py`
describes it. `tuning*.py` are what the kinds share that begin with a pretrained model. How runs are recorded, by which
the rooms below know them again, is in records/kinds.py.
"""
