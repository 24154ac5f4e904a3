"""What to do about an error of a store, by its number or code."""

import errno

REACHABLE = "check that the store is reachable and undamaged"

OF_LOCAL = {
    errno.EROFS: "choose a writable store",
    errno.EACCES: "give this user write permission, or choose another store",
    errno.ENOTDIR: "choose a folder, not a file, for the store",
}

REGION = "check that AWS_DEFAULT_REGION is the region of the bucket"

OF_S3 = {
    "RequestTimeTooSkewed": "set this machine's clock: it differs from that of the server",
    "AuthorizationHeaderMalformed": REGION,
    "PermanentRedirect": REGION,
}


def remedy_of_local(number: int | None) -> str:
    """The remedy for an error of a file system, by its `errno`."""
    return OF_LOCAL.get(number or 0, REACHABLE)


def remedy_of_remote(error: Exception) -> str:
    """The remedy for an error of a remote store."""
    answer = getattr(error.__cause__ or error, "response", None)  # s3fs raises its own errors from botocore's
    if isinstance(answer, dict) and (remedy := OF_S3.get(answer.get("Error", {}).get("Code"))):
        return remedy
    # For a request without a body, S3 reports an expired token only as `Bad Request`.
    if isinstance(error, PermissionError) or "redentials" in type(error).__name__ or "Bad Request" in str(error):
        return (
            "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role) and that they "
            "may read, write, list and delete there"
        )
    return "create the bucket, or choose another store" if isinstance(error, FileNotFoundError) else REACHABLE
