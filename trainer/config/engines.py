"""Where units of work run: shards, encoded pieces of labelled data, the ranks of training and evaluation."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainer.config.schema import Schema

CLIENT = "ray://"


class LocalEngine(Schema):
    """This machine's processes."""

    kind: Literal["local"] = Field(default="local", description="processes of this machine")


class RayEngine(Schema):
    """The nodes of a Ray cluster, one of which is this machine."""

    kind: Literal["ray"] = Field(description="tasks and workers of a Ray cluster, of which this machine is a node")
    address: str = Field(
        default="auto",
        min_length=1,
        description="HOST:PORT of the cluster's head; auto: what RAY_ADDRESS says, else the cluster that runs on this "
        "machine",
    )
    min_workers: int | None = Field(
        default=None,
        ge=1,
        description="ranks with which training goes on, and starts, where the cluster has no room for "
        "training.processes; default: no fewer than those",
    )
    cpus_per_worker: int = Field(
        default=1, ge=1, description="cores that the cluster keeps for each rank, and its threads"
    )
    max_failures: int = Field(
        default=3,
        ge=-1,
        description="times that the ranks, or one shard, are started again because a node or process was lost; -1: "
        "every time",
    )
    resize_seconds: float = Field(
        default=60.0,
        gt=0,
        description="seconds between two looks whether there is room for more ranks; with min_workers",
    )

    @model_validator(mode="after")
    def _is_a_node(self) -> Self:
        if self.address.startswith(CLIENT):
            raise ValueError(
                f"address {self.address!r} is one of Ray's clients, which end when the network is away for half a "
                "minute: run on a node of the cluster, and give HOST:PORT of its head, or auto"
            )
        return self


Engine = Annotated[
    LocalEngine | RayEngine,
    Field(
        discriminator="kind",
        description="where the work runs: local, or the nodes of a Ray cluster; the results are the same",
    ),
]
