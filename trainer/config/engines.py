"""Schemas of the engine: where shards, pieces of labelled data, and the ranks of training and evaluation run."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainer.config.schema import Schema

CLIENT = "ray://"


class LocalEngine(Schema):
    """Processes on this machine."""

    kind: Literal["local"] = Field(default="local", description="processes on this machine")


class RayEngine(Schema):
    """The nodes of a Ray cluster; this machine must be one of them."""

    kind: Literal["ray"] = Field(description="tasks and workers of a Ray cluster that this machine is a node of")
    address: str = Field(
        default="auto",
        min_length=1,
        description="HOST:PORT of the cluster's head; auto: the value of RAY_ADDRESS, else the cluster that runs on "
        "this machine",
    )
    min_workers: int | None = Field(
        default=None,
        ge=1,
        description="fewest ranks with which training starts and continues if the cluster lacks resources for "
        "training.processes; default: training.processes",
    )
    cpus_per_worker: int = Field(
        default=1, ge=1, description="cores that the cluster reserves for each rank; also the rank's number of threads"
    )
    max_failures: int = Field(
        default=3,
        ge=-1,
        description="restarts of the ranks, or of one shard, after the loss of a node or process; -1: unlimited",
    )
    resize_seconds: float = Field(
        default=60.0,
        gt=0,
        description="with min_workers: seconds between checks whether the cluster has resources for more ranks",
    )

    @model_validator(mode="after")
    def _is_a_node(self) -> Self:
        if self.address.startswith(CLIENT):
            raise ValueError(
                f"address {self.address!r} is for Ray clients, which end after a network outage of half a minute: run "
                "on a node of the cluster and set HOST:PORT of its head, or auto"
            )
        return self


Engine = Annotated[
    LocalEngine | RayEngine,
    Field(
        discriminator="kind",
        description="where the work runs: on this machine or on a Ray cluster; the results are the same",
    ),
]
