"""The loop, its step, checkpoints and recovery, devices and ranks.

`saver.py` writes checkpoints and commits them, `checkpoint.py` says what they hold and finds them, `restoring.py` loads
one.
"""
