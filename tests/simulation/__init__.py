"""Interleavings: processes that work on one store at once, step by step, in an order that a seed decides.

The code of the store, leases, steps, saves, garbage and champions runs as it is. What is not real is the bucket
(`bucket`), and time and processes (`world`): a request is a step, after which any other process may go on, be killed or
stand still. `clients` is what the processes do, `trial` puts them together and looks at what comes of it.

`python -m tests.simulation [N [FIRST]]` tries N seeds.
"""
