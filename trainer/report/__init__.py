"""What a run did, on a page and a model card. `making.make_report` makes them, given what a kind tells of its runs."""
