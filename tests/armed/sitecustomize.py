"""Arms worker processes at their start, for tests that kill or record; this folder is on their path."""

import os

if "KILLING" in os.environ:
    from tests.killing import arm

    arm(*os.environ["KILLING"].split("\n"))

if "RECORDING" in os.environ:
    from tests.power_cuts.recording import Recorder

    Recorder(*os.environ["RECORDING"].split("\n")).arm()
