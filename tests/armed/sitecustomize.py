"""On the path of the worker processes of what tests kill, or record: arms them as they start."""

import os

if "KILLING" in os.environ:
    from tests.killing import arm

    arm(*os.environ["KILLING"].split("\n"))

if "RECORDING" in os.environ:
    from tests.power_cuts.recording import Recorder

    Recorder(*os.environ["RECORDING"].split("\n")).arm()
