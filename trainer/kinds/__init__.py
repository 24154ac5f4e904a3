"""The kinds of job, each in a folder, with all that is not their schema or their data. Their table is `KINDS` in
config/kinds.py; `kind.py` looks jobs up in it.

In a folder, `kind.py` says what decides a run's outcome and how its model is measured, and names the rest, as
`kinds/kind.py` describes: how jobs are looked at (`preflight.py`), what the kind brings to the training loop
(`workload.py`), how a model is measured (there, or in `evaluate.py`), and what pages tell of its runs (`page.py`).
`tuning*.py` are what the kinds share that begin with a pretrained model.
"""
