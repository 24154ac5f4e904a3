"""Credentials of the store from a prefect-aws block.

    HEADRACE_CREDENTIALS   the block, as `aws-credentials/NAME`, `minio-credentials/NAME` or `s3-bucket/NAME`; if not
                           set, the Prefect server's variable `headrace_credentials`, if it exists

The credentials are put into the environment variables that s3fs and AWS tools read, in this process and the stages that
it starts. They are not passed anywhere else.
"""

import os
from pathlib import Path
from typing import Any

from trainer.common.credentials import ENDPOINT, IDENTITY, set_environment
from trainer.common.errors import ConfigError

VARIABLE = "HEADRACE_CREDENTIALS"


def use_credentials(start_server: bool = True) -> None:
    """Load the credentials of the block that the environment or the Prefect server specifies, if any.

    Reading the server's variable would make Prefect start a server if none is configured; this is done only with
    `start_server`. Raises `ConfigError` if the block does not exist or has an unsupported type.
    """
    # Imported here, so that commands can import `VARIABLE` without loading Prefect.
    from prefect.blocks.core import Block
    from prefect.settings import PREFECT_API_URL
    from prefect.variables import Variable

    name = os.environ.get(VARIABLE)
    if not name and (start_server or PREFECT_API_URL.value()):
        name = Variable.get(VARIABLE.lower(), "")
    if not isinstance(name, str) or not name:
        return
    try:
        import prefect_aws  # noqa: F401 - registers its block types
    except ImportError as error:
        raise ConfigError(f"{VARIABLE} is {name!r}: Prefect's AWS blocks need `pip install 'headrace[aws]'`") from error
    try:
        block = Block.load(name)
    except ValueError as error:
        raise ConfigError(f"{VARIABLE} is {name!r}, but this block does not exist: {error}") from error
    found = _environment(name, block)
    # A block's identity is not mixed with another one. Without one in the block, that of the machine is used.
    set_environment(found, former=IDENTITY)


def _environment(name: str, block: Any) -> dict[str, str]:
    """AWS environment variables with a block's values."""
    from prefect_aws import AwsCredentials, MinIOCredentials, S3Bucket

    if isinstance(block, S3Bucket):
        block = block.credentials
    if isinstance(block, AwsCredentials):
        if block.assume_role_arn:
            raise ConfigError(
                f"{name} assumes a role, whose credentials would expire; use a profile with that `role_arn` instead"
            )
        key, secret = block.aws_access_key_id, block.aws_secret_access_key
        others = {"AWS_SESSION_TOKEN": block.aws_session_token, "AWS_PROFILE": block.profile_name}
    elif isinstance(block, MinIOCredentials):
        key, secret, others = block.minio_root_user, block.minio_root_password, {}
    else:
        raise ConfigError(f"{name} is a {type(block).__name__}; expected AwsCredentials, MinIOCredentials or S3Bucket")
    verify = block.aws_client_parameters.get_params_override().get("verify")
    found = {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret.get_secret_value() if secret else None,
        "AWS_DEFAULT_REGION": block.region_name,
        ENDPOINT: block.aws_client_parameters.endpoint_url,
        "AWS_CA_BUNDLE": verify if isinstance(verify, Path) else None,
        **others,
    }
    return {variable: str(value) for variable, value in found.items() if value}
