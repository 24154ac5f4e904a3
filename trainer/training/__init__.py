"""The loop, its step, checkpoints and recovery, devices and ranks.

`saver.py` writes and commits checkpoints, `checkpoint.py` defines and finds them, and `restoring.py` loads
one.
"""
