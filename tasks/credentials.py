"""Credentials of the store from a block of prefect-aws, for whoever keeps them in Prefect.

    HEADRACE_CREDENTIALS   the block, as `aws-credentials/NAME`, `minio-credentials/NAME` or `s3-bucket/NAME`; if it is
                           not set, the variable `headrace_credentials` of the Prefect server says, where that has it

They go where s3fs and every AWS tool look for them, into the environment of this process and of the stages that it
starts; nothing else learns them.
"""

import os
from typing import Any

from trainer.common.errors import ConfigError

VARIABLE = "HEADRACE_CREDENTIALS"
IDENTITY = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"}


def use_credentials(start_server: bool = True) -> None:
    """Take the credentials of the block that the environment or the server names, if one does.

    Where no server is set Prefect starts one to ask for its variable, which is left out unless `start_server`. Raises
    `ConfigError` if there is no such block, or it is of another kind.
    """
    # Loaded here, so that a command can ask for the variable's name without Prefect.
    from prefect.blocks.core import Block
    from prefect.settings import PREFECT_API_URL
    from prefect.variables import Variable

    name = os.environ.get(VARIABLE)
    if not name and (start_server or PREFECT_API_URL.value()):
        name = Variable.get(VARIABLE.lower(), "")
    if not isinstance(name, str) or not name:
        return
    try:
        import prefect_aws  # noqa: F401 - makes its blocks known
    except ImportError as error:
        raise ConfigError(
            f"{VARIABLE} is {name!r}, a Prefect block, which needs `pip install 'headrace[aws]'`"
        ) from error
    try:
        block = Block.load(name)
    except ValueError as error:
        raise ConfigError(f"{VARIABLE} is {name!r}, but there is no such block: {error}") from error
    found = _environment(name, block)
    for variable in IDENTITY - found.keys():  # the block's, whole, and nothing of somebody else's
        os.environ.pop(variable, None)
    os.environ.update(found)


def _environment(name: str, block: Any) -> dict[str, str]:
    """What AWS's own variables are called, with a block's values."""
    from prefect_aws import AwsCredentials, MinIOCredentials, S3Bucket

    if isinstance(block, S3Bucket):
        block = block.credentials
    if isinstance(block, AwsCredentials):
        if block.assume_role_arn:
            raise ConfigError(
                f"{name} assumes a role, which expires; name a profile with that `role_arn`, which is renewed"
            )
        key, secret = block.aws_access_key_id, block.aws_secret_access_key
        others = {"AWS_SESSION_TOKEN": block.aws_session_token, "AWS_PROFILE": block.profile_name}
    elif isinstance(block, MinIOCredentials):
        key, secret, others = block.minio_root_user, block.minio_root_password, {}
    else:
        raise ConfigError(f"{name} is a {type(block).__name__}; expected AwsCredentials, MinIOCredentials or S3Bucket")
    found = {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret.get_secret_value() if secret else None,
        "AWS_DEFAULT_REGION": block.region_name,
        "AWS_ENDPOINT_URL": block.aws_client_parameters.endpoint_url,
        **others,
    }
    return {variable: str(value) for variable, value in found.items() if value}
