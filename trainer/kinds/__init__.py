"""The kinds of job, each whole in a folder. Their table is `KINDS` in config/kinds.py; `lookup.py` looks jobs up in it.

A folder says how a kind's jobs are looked at (`preflight.py`), what decides a run's outcome (`identity.py`, of
pretraining `prepare.py`), what it brings to the training loop (`workload.py`), how its model is measured
(`measurement.py`, `evaluate.py`), and what pages tell of its runs (`page.py`); `kind.py` names all of it, as
`kinds/kind.py` describes. `tuning*.py` are what the kinds share that begin with a pretrained model.
"""
