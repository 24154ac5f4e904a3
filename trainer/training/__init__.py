"""The loop, its step, checkpoints and recovery, devices and ranks. `checkpoint.py` commits, `saver.py` in the background."""
