"""Detection of mistyped addresses, and of credentials in them: a password before the host, or a key in the query.

Addresses are recorded with the artifacts and appear in logs and messages, so addresses with credentials are refused.
"""

import re
from urllib.parse import unquote

HIDDEN = "***"

WHOLE = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*::)*[a-z][a-z0-9+.-]*://", re.IGNORECASE)
"""Start of a text that is an address as a whole."""

CHAIN = re.compile(r"::(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
"""Separator of the addresses in a chain, such as zip://a.csv::s3://bucket/a.zip."""

WITHIN = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]+://[^\s'\"<>]+")
"""An address, or a chain, in a text. It starts at a word boundary, so that a long word is scanned only once."""

WEB = ("http", "https")
"""Schemes in which a user without a password may be a token, unless it is one of `ANYBODY`."""

ANYBODY = ("git", "anonymous")

WITHOUT_PASSWORDS = {"file", "local", "memory", "github", "git", "hf"}
"""Schemes in which a colon and an @ have another meaning: a drive, or a repository and its revision."""

QUERY = re.compile(r"([?&;#])([^=?&;#]+)=([^&;#]+)")

SECRET = re.compile(
    r"(?:signature|credential|secret|password|passwd|api[-_]?key|access[-_]?key(?:[-_]?id)?|rlkey|authkey|session(?:[-_]?id)?"
    r"|(?:access|auth|security|session|refresh|id)[-_]?token)$|^(?:sig|pwd|pass|jwt)$",
    re.IGNORECASE,
)
"""Query parameters with credentials, as in signed addresses of S3, Google and Azure."""

MAYBE_SECRET, LONG = (
    re.compile(r"(?<!page)(?<!page[-_])(?<!next[-_])(?<!next)token$|^(?:key|auth|code)$", re.IGNORECASE),
    16,
)
"""Query parameters that are treated as credentials only if the value has at least `LONG` characters."""

INSTEAD = (
    "remove them, and provide them as the store's own tools expect: in environment variables such as "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in the tools' credential files"
)


def redacted(text: str) -> str:
    """Return the text with credentials in addresses replaced by `HIDDEN`."""
    return WITHIN.sub(lambda found: _hide_in_chain(found[0]), text) if "://" in text else text


def check_address(text: str) -> None:
    """Raise `ValueError` if the whole text is an address with credentials."""
    if "://" in text and WHOLE.match(text) and (shown := _hide_in_chain(text)) != text:
        raise ValueError(f"{shown!r} holds credentials, which would be recorded with the results: {INSTEAD}")


MISTYPED = re.compile(
    r"(?:s3a?|gs|gcs|abfss?|az|hdfs|https?)(?::(?!//)|//)|(?:.*/)?\$\w|.*?(?:\$\{|\{\{)|[\w+]+::(?=.*://)"
    r"|[A-Za-z]:[\\/]|\\\\"  # a folder of Windows, which Linux would create as one name
)
"""The beginning of a place that would be taken for a folder here, although something else is meant."""


def check_place(text: str) -> None:
    """Raise `ValueError` if a text that names a folder or a URL is probably a mistyped one."""
    if mistake := MISTYPED.match(text.strip()):
        raise ValueError(
            f"{text!r} is neither a folder nor a URL, as it begins with {mistake[0]!r}; expected a folder, or a URL "
            "such as s3://bucket/folder, without variables or drives"
        )


def _hide_in_chain(chain: str) -> str:
    return "::".join(_hide(address) for address in CHAIN.split(chain))


def _hide(address: str) -> str:
    scheme, found, rest = address.partition("://")
    path = re.split("[?#]", rest, maxsplit=1)[0]
    if found and "@" in path and _has_password(scheme.strip().lower(), path):
        rest = f"{HIDDEN}@{path.rpartition('@')[2]}{rest[len(path) :]}"
    return scheme + found + QUERY.sub(_hide_value, rest)


def _has_password(scheme: str, path: str) -> bool:
    """Whether the part before an @ is a token, or a user with a password, which may contain slashes and @."""
    first = path.split("/", 1)[0]
    user, _, password = first.rpartition("@")[0].partition(":")
    if "@" in first:
        if scheme.endswith(WEB) and (password or user not in ANYBODY):
            return True
        return scheme not in WITHOUT_PASSWORDS and bool(password) and user != "anonymous"
    _, _, password = first.partition(":")
    is_name = scheme in WITHOUT_PASSWORDS or first.startswith(("[", "arn:"))
    return bool(password) and not password.isdecimal() and not is_name


def _hide_value(found: re.Match[str]) -> str:
    before, name, value = found.groups()
    plain = unquote(name)
    secret = SECRET.search(plain) or (MAYBE_SECRET.search(plain) and len(value) >= LONG)
    return f"{before}{name}={HIDDEN}" if secret else found[0]
