"""Interleavings: processes that work on one store at once, step by step, in an order that a seed decides.

The code of the store, leases, steps, saves, curation, predictions, garbage and champions runs as it is. What is not
real is the bucket (`bucket`), time and processes (`world`), and what they leave on their machines (`machines`); all
that is put in their places by `replaced`. A request is a step, after which any other process may go on, be killed or
stand still. What the processes do is in `clients`, `preparing` and `predicting`; `trial` puts them together, and
`watching` looks at what comes of it.

`python -m tests.simulation [N [FIRST]]` tries N seeds.
"""
