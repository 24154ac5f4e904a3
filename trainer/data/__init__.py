"""From raw files to model inputs: readers, token shards, labelled examples, conversations, data order and packing."""
