"""The artifact store, in a local folder (`local.py`) or a remote file system such as an S3 bucket (`remote.py`).

Files are written atomically, and manifests list them.
"""
