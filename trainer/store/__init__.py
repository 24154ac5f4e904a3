"""The artifact store, in a local folder or in a bucket (`remote.py`): files that appear whole, and manifests that list them."""
