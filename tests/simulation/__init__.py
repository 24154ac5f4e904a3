"""Deterministic simulation of concurrent processes on one store, interleaved step by step in an order set by a seed.

The real code of the store, leases, steps, saves, curation, predictions, garbage collection and champions runs. The
bucket (`bucket`), time and processes (`world`), and the machines' files (`machines`) are simulated; `replaced` installs
them. A step is one request, after which any other process may continue, be killed or freeze. `clients`, `preparing` and
`predicting` define what the processes do, `trial` combines them, and `watching` checks the results.

`python -m tests.simulation [N [FIRST]]` tries N seeds.
"""
