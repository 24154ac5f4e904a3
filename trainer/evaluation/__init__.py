"""Figures of models on data that they were not trained on, samples, and predictions."""
