"""New and pretrained models and tokenizers: files, adapters and losses."""
