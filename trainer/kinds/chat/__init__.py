"""Instruction tuning: a pretrained causal language model learns to answer, from conversations."""
