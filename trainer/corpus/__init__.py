"""Raw files to a tokenizer and numbered shards, and windows over those."""
