"""What a command would do, and why, with the store only read. `job.foresee` is what `python -m trainer.explain` prints."""
