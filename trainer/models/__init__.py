"""Models and tokenizers, new or pretrained: their files, adapters and losses."""
