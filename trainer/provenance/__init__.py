"""Everything behind a model: its record of lineage, the whole way to it, and whether that is still there."""
