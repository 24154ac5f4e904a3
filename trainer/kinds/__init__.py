"""What differs between kinds of job: `pretraining.py`, `finetuning.py`, `chat.py`, and the one table of them, `table.py`.

A further kind is one more entry there, described as `kind.py` says: which schema validates its jobs (config/), how its data is
looked at and made (preflight/, corpus/, labelled/ or chat/), what decides a run's outcome (runs/), what it brings to the
training loop (workloads/), how its model is measured (evaluation/) and foreseen (foresight/), and what is told of its runs
(report/) and compared (comparison/). `training.py`, `foresight.py` and `reporting.py` do that work for a job of any kind. How
its runs are recorded, by which the rooms below know them again, is an entry in records/kinds.py. Its tasks and its flow are
written out; docs/how-to/add-a-kind.md lists every place.
"""
