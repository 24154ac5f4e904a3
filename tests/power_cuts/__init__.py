"""Power cuts: what a disk may hold after one, and whether the work goes on from there. `python -m tests.power_cuts`.

A kill keeps all that a process has written; a power cut keeps what was synced, and of the rest any part. `recording`
notes what a process does to a store, `images` says what a cut may leave of it, `trials` what is done and how it goes
on.
"""
