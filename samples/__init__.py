"""Sample data for the examples in configs/, made from Python's own sources: `python -m samples.corpora FOLDER`."""
