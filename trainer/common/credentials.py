"""The environment variables with a bucket's credentials, which s3fs and AWS tools read."""

import os
from collections.abc import Mapping, Set

IDENTITY = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"}
ENDPOINT = "AWS_ENDPOINT_URL"
STRONGER = {"AWS_ENDPOINT_URL_S3", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"}
"""Variables because of which `ENDPOINT` would be ignored."""


def set_environment(found: Mapping[str, str], former: Set[str]) -> None:
    """Set these environment variables, and remove the `former` ones that are not among them. An endpoint among them is
    the one that is used.
    """
    for name in (former | (STRONGER if ENDPOINT in found else set())) - found.keys():
        os.environ.pop(name, None)
    os.environ.update(found)
