"""Instruction tuning: conversations and a pretrained causal model to one that answers."""
