"""From a sample's number to its data, and from the data's size to the number of steps.

Corpora are mixed by shares n ** alpha, which `plan.py` computes and `mixing.py` draws by.
"""
