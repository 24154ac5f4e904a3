"""What a run did, on a page and a model card. Others call `making.make_report`."""
