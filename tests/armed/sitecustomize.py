"""On the path of the worker processes of `tests.killing`: arms them as they start."""

import os

if "KILLING" in os.environ:
    from tests.killing import arm

    arm(*os.environ["KILLING"].split("\n"))
