"""Metrics of classification and regression: `measures.py` finds and computes them, those that come along have a folder
each.

What language models are measured by is computed in `trainer/kinds/pretraining/measure.py`; a new figure of theirs goes
there.
"""
