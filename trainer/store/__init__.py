"""The artifact store, in a local folder (`local.py`) or in a bucket of S3 or its like (`remote.py`).

Its files appear whole, and manifests list them.
"""
