"""What differs between kinds of job: `pretraining.py`, `finetuning.py`, and the one table of them, `table.py`.

A further kind is one more entry there, described as `kind.py` says: which schema validates its jobs (config/), how its data is
looked at and made (preflight/, corpus/ or labelled/), what decides a run's outcome (runs/), what it brings to the training loop
(workloads/), how its model is measured (evaluation/) and foreseen (foresight/). `training.py` and `foresight.py` do that work
for a job of any kind. What reports, lineage and comparison tell of a run, its tasks and its flow still ask for the kind
themselves.
"""
