"""Folders of pretrained models, by name or path: found and looked at before a library loads them."""
