"""What to do about an error of a store, by its number or code."""

import errno
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.common.errors import reason_of
from trainer.common.transient import is_transient, number_of
from trainer.store.checked_files import FOLDER, machine_cache

REACHABLE = "check that the store is reachable and undamaged"

OF_LOCAL = {
    errno.EROFS: "choose a writable store",
    errno.EACCES: "give this user write permission, or choose another store",
    errno.ENOTDIR: "choose a folder, not a file, for the store",
}


NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
NOT_CREATED = (*NOT_WRITABLE, errno.ENOENT, errno.EEXIST)


def is_of_cache(error: Exception) -> bool:
    """Whether an error means that this machine's cache folder cannot be created, or is not writable."""
    named = error.filename if isinstance(error, OSError) else None
    if not isinstance(named, str) or not Path(named).is_absolute():
        return False
    place, cache, number = Path(named), machine_cache().absolute(), number_of(error)
    if cache.is_relative_to(place):
        return number in NOT_CREATED
    return place.is_relative_to(cache) and number in NOT_WRITABLE


def describe_cache_error(error: Exception) -> str:
    """What is wrong with this machine's cache folder, and what to do."""
    return (
        f"{reason_of(error)}: {getattr(error, 'filename', '')}, of this machine's cache of remote files "
        f"({machine_cache()}); set {FOLDER} to a folder that this user can write to"
    )


REGION = "check that AWS_DEFAULT_REGION and AWS_ENDPOINT_URL are those of the bucket"

OF_S3 = {
    "InvalidObjectState": "restore the object from its archive, or copy it to another storage class",
    "RequestTimeTooSkewed": "set this machine's clock: it differs from that of the server",
    "AuthorizationHeaderMalformed": REGION,
    "PermanentRedirect": REGION,
}


def remedy_of_local(number: int | None) -> str:
    """The remedy for an error of a file system, by its `errno`."""
    return OF_LOCAL.get(number or 0, REACHABLE)


INVALID_ENDPOINT = "Invalid endpoint: "
"""The beginning of the `ValueError` that botocore raises for an endpoint without http:// or https://."""


def is_of_remote(error: Exception) -> bool:
    """Whether a library of a remote file system raised an error of its own: for a server's answer, or its settings."""
    libraries = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(libraries & {"botocore", "aiohttp"}) or str(error).startswith(INVALID_ENDPOINT)


PROVIDERS, REDIRECTS = "aiobotocore.credentials", "aiobotocore.utils"
"""The modules that run the programs and read the files that provide credentials, and that follow redirects."""

logging.getLogger(PROVIDERS).setLevel(logging.ERROR)  # it logs each attempt to renew valid ones with a traceback


@contextmanager
def credentials_explained() -> Iterator[None]:
    """Convert errors of this machine's programs and files that provide credentials, of which one that is missing would
    look like a missing object, into botocore's error for them; and the endless recursion after a redirect of the server
    that names no region.
    """
    try:
        yield
    except Exception as error:
        modules = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)}
        if "recursion" in str(error) and REDIRECTS in modules:
            from botocore.exceptions import ClientError
            from s3fs.errors import translate_boto_error

            redirect = {"Code": "PermanentRedirect", "Message": "the server redirects requests, and names no region"}
            redirected = ClientError({"Error": redirect}, "any")
            raise translate_boto_error(redirected) from redirected
        if is_of_remote(error) or PROVIDERS not in modules:
            raise
        from botocore.exceptions import CredentialRetrievalError

        raise CredentialRetrievalError(provider="this machine", error_msg=str(error)) from error


def remedy_of_remote(error: Exception) -> str:
    """The remedy for an error of a remote store."""
    if remedy := remedy_of_s3(error, "read, write, list and delete"):
        return remedy
    return "create the bucket, or choose another store" if isinstance(error, FileNotFoundError) else REACHABLE


def remedy_of_s3(error: Exception, wanted: str) -> str | None:
    """The remedy for credentials and other settings of S3; None if others are the cause. `wanted` is what the
    credentials must permit.
    """
    answer = getattr(error.__cause__ or error, "response", None)  # s3fs raises its own errors from botocore's
    code = answer.get("Error", {}).get("Code", "") if isinstance(answer, dict) else ""
    if remedy := OF_S3.get(code):
        return remedy
    # The answer to HEAD has no body with a code; an expired token, for example, is only a `Bad Request`.
    others = "; or this machine's clock or AWS_DEFAULT_REGION is wrong" if code in ("400", "403") else ""
    named = any(word in type(error).__name__ for word in ("redentials", "Token"))
    if isinstance(error, PermissionError) or named or "Bad Request" in str(error):
        return (
            "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role) and that they "
            f"may {wanted} there{others}"
        )
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "CredentialRetrievalError" in kinds:
        return (
            "check what provides the credentials: credential_process of the profile (AWS_PROFILE, AWS_CONFIG_FILE), "
            "the file AWS_WEB_IDENTITY_TOKEN_FILE, or a role"
        )
    if "SSLError" in kinds:
        return "check whether the server expects https (AWS_ENDPOINT_URL), and its certificate (AWS_CA_BUNDLE)"
    setting = "BotoCoreError" in kinds and "FlexibleChecksumError" not in kinds and not is_transient(error)
    if setting or str(error).startswith(INVALID_ENDPOINT):
        return (
            "check the bucket's name, and AWS's settings: AWS_ENDPOINT_URL, which begins with http:// or https://, "
            "AWS_DEFAULT_REGION, AWS_PROFILE and the others, and its files"
        )
    return None
