"""Power cuts: possible disk contents after one, and whether the work resumes from them. `python -m tests.power_cuts`.

After a kill, everything that the process wrote is there. After a power cut, synced data is there, and any part of the
rest. `recording` records a process's changes of a store, `images` computes what a cut may leave, and `trials` defines
the work and how it resumes.
"""
