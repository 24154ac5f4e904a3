"""Devices, ranks, precision and threads, through `accelerate`; checks that this machine has what the job requests.

On a CPU, the number of threads determines how sums are split and so their rounding: a run keeps the number that it
started with.
"""

import logging
import os
import platform
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, DistributedType
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.common.errors import EXIT_PREEMPTED, ConfigError, DeviceError, FirstRankFailed, RankLost, StorageError
from trainer.common.process import THREADS, cores_per_rank, threads_asked_for, usable_cores, versions
from trainer.common.stopping import StopRequested, stop_requested
from trainer.common.transient import AT_THE_START, exit_status, retry_transient
from trainer.config.training import OptimizationConfig
from trainer.data.order import stable_key
from trainer.store.probes import write_probe
from trainer.store.storage import Store
from trainer.training.checkpoint import Computed
from trainer.training.rank_watchdog import leave_peers, require_torchrun, watch_peers

log = logging.getLogger(__name__)


MIXED_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
LONG_WAIT = timedelta(days=7)
"""How long ranks wait for rank 0 to prepare data: longer than any collective of training."""

PREFER_CUDNN = (9, 10)
"""Major compute capabilities of the GPUs (Hopper, Blackwell) on which cuDNN's attention is the fastest."""

CUDNN_FIRST = [
    SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
]  # fmt: skip
"""Implementations of attention by priority; the first that supports the inputs is used."""

T = TypeVar("T")


@dataclass(frozen=True)
class Runtime:
    """This process and its ranks."""

    accelerator: Accelerator
    control: Any
    """A CPU process group for small messages, or None when alone."""

    @property
    def rank(self) -> int:
        return int(self.accelerator.process_index)

    @property
    def ranks(self) -> int:
        return int(self.accelerator.num_processes)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.accelerator.device
        return device

    def on_first(self, work: Callable[[], T], most: float | None = None) -> T:
        """Run `work` on rank 0 only, however long it takes, and return its result on every rank.

        Transient errors are retried there, for at most `most` seconds if that is given. If the work fails or is
        stopped, the other ranks raise `FirstRankFailed` or `StopRequested`.
        """
        if self.ranks == 1:
            return retry_transient(work, most=most)
        outcome: list[Any] = [None, None, 0]
        failure: BaseException | None = None
        if self.rank == 0:
            try:
                outcome[0] = retry_transient(work, most=most)
            except StopRequested as stop:
                failure, outcome[1] = stop, ""
            except Exception as error:
                failure, outcome[1:] = error, [f"{type(error).__name__}: {error}", exit_status(error)]
        dist.broadcast_object_list(outcome, src=0, group=self.control)
        if failure is not None:
            raise failure
        if outcome[1] is not None:
            raise FirstRankFailed(f"rank 0 ended with {outcome[1]}", outcome[2]) if outcome[1] else StopRequested
        result: T = outcome[0]
        return result

    def on_each(self, work: Callable[[], T], warn: Callable[[str], object] = log.warning) -> list[T]:
        """Run `work` on every rank, and return the results of all on every rank, in the order of the ranks.

        Each rank retries transient errors and reports them itself, because the others do not know of them. If the store
        refuses the work on any rank, every rank raises the same `StorageError`. On other errors, the other ranks raise
        `RankLost` with the error's message.
        """
        outcome: tuple[Any, str | None, int, bool] = (None, None, 0, True)
        failure: Exception | None = None
        try:
            outcome = (retry_transient(work, warn), None, 0, True)
        except Exception as error:
            failure = error
            where = f"rank {self.rank} of {self.ranks} ({socket.gethostname()})"
            why = f"{where} ended with {type(error).__name__}: {error}"
            outcome = (None, why, exit_status(error), isinstance(error, StorageError))
        found: list[Any] = [outcome]
        if self.ranks > 1:
            found = [None] * self.ranks
            dist.all_gather_object(found, outcome, group=self.control)
        failed = [each for each in found if each[1] is not None]
        if not failed:
            return [each[0] for each in found]
        message, statuses = "; ".join(each[1] for each in failed), {each[2] for each in failed}
        if all(each[3] for each in failed):
            raise StorageError(message, statuses == {EXIT_PREEMPTED}) from failure
        raise failure or RankLost(message, min(statuses))

    def with_own_group(self) -> "Runtime":
        """The same ranks with their own process group, for a thread that works in parallel with training."""
        return Runtime(self.accelerator, dist.new_group(backend="gloo", timeout=LONG_WAIT) if self.ranks > 1 else None)

    def check_stop(self) -> None:
        """Raise `StopRequested` on every rank if any was asked to stop, even inside a block that defers stops."""
        if self.any(stop_requested()):
            raise StopRequested

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return bool(self.sum(torch.tensor(int(flag))))

    def wait_for_all(self) -> None:
        """Wait until every rank has reached this call, for days if necessary; a device's collectives time out after
        minutes.
        """
        self.any(False)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a CPU tensor over the ranks."""
        if self.ranks > 1:
            dist.all_reduce(values, group=self.control)
        return values


def count_gpus(device: str) -> int:
    """The number of GPUs to use. Raises `DeviceError` if the job requires a GPU and this machine has none."""
    gpus = torch.cuda.device_count()
    if device == "gpu" and not gpus:
        raise DeviceError("the job's device is gpu, but this machine has no GPU; use cpu or auto")
    return 0 if device == "cpu" else gpus


def check_devices(precision: str, processes: int | None, device: str = "auto") -> None:
    """Raise `DeviceError` if this machine lacks the precision or the devices."""
    gpus = count_gpus(device)
    if precision == "fp16" and not gpus:
        raise DeviceError("the job's precision is fp16, but this machine has no GPU; use fp32 or bf16")
    if precision == "bf16" and gpus and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise DeviceError("the job's precision is bf16, which this GPU lacks or only emulates; use fp16 or fp32")
    available, unit = (gpus, "GPUs") if gpus else (usable_cores(), "cores and no GPU")
    if (processes or 1) > available:
        raise DeviceError(f"the job asks for {processes} processes, but this machine has {available} {unit}")


def planned_ranks(processes: int | None, device: str = "auto") -> int:
    """The number of ranks that the pipeline starts: as given, else one per GPU, or one."""
    return processes or max(1, count_gpus(device))


def start_runtime(precision: str, device: str = "auto", deterministic: bool = False) -> Runtime:
    """Join the other ranks if a launcher started several, and set the number of threads to the cores per rank.

    OMP_NUM_THREADS overrides the number of threads. Raises `ConfigError` if it is not a number, or if accelerate's
    configuration contradicts the precision or the device; `DeviceError` if accelerate started fewer processes than
    requested; `RankLost` if the torchrun that started this rank has ended.
    """
    choose_algorithms(deterministic)
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if launched and launched != MIXED_PRECISION[precision]:
        raise ConfigError(
            f"accelerate's configuration has mixed precision {launched!r}, but the job's precision is "
            f"{precision!r}; make them the same"
            f"{' (`no` is the value of accelerate if nothing is set)' if launched == 'no' else ''}"
        )
    use_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower()
    on_cpu = use_cpu in ("1", "true", "yes")
    if on_cpu and device == "gpu":
        raise ConfigError("accelerate's configuration has use_cpu, but the job's device is 'gpu'; make them the same")
    cpu = on_cpu or not count_gpus(device)
    if device == "cpu" and use_cpu in ("0", "false") and torch.cuda.is_available():
        raise ConfigError(
            "accelerate's configuration has use_cpu false, but the job's device is 'cpu'; make them the same"
        )
    ranked = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"} & os.environ.keys()
    if "ACCELERATE_USE_CPU" in os.environ and "MASTER_ADDR" in os.environ and not ranked:
        # accelerate sets an address for several processes, but then starts only one if there is no mpirun.
        raise DeviceError(
            "accelerate was asked for several CPU processes, but started one, because several need mpirun; "
            "use `torchrun --nproc-per-node N -m trainer CONFIG.yaml`"
        )
    if os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1") != "1":
        raise ConfigError("accelerate's configuration sets gradient accumulation; set training.micro_batch instead")
    if os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower() not in ("", "no"):
        raise ConfigError("accelerate's configuration sets dynamo_backend; set training.compile instead")
    if not dist.is_initialized():  # else accelerate keeps precision and device of this process's first run
        AcceleratorState._reset_state(reset_partial_state=True)
        require_torchrun()
    if not cpu:  # torch 2.11 and later use cuDNN first for every shape; torch reads this at its first attention
        os.environ.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    accelerator = Accelerator(mixed_precision=MIXED_PRECISION[precision], cpu=cpu)
    if cpu:  # after accelerate, which may set another number
        torch.set_num_threads(threads_asked_for() or cores_per_rank())
    kinds = {DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU}
    if accelerator.distributed_type not in kinds:
        raise ConfigError(
            f"accelerate's configuration asks for {accelerator.distributed_type.value}; only DDP is supported"
        )
    if accelerator.num_processes == 1:
        return Runtime(accelerator, None)
    runtime = Runtime(accelerator, dist.new_group(backend="gloo", timeout=LONG_WAIT))
    watch_peers(runtime.rank, runtime.ranks, runtime.control)
    return runtime


def choose_algorithms(deterministic: bool) -> None:
    """Select PyTorch's deterministic algorithms, or its fastest ones; must run before a GPU computes anything.

    The deterministic algorithms of cuBLAS need their own workspaces (NVIDIA's documentation of cuBLAS, "Results
    reproducibility").
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    # No code here reads uninitialised memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def prefer_cudnn_attention(device: torch.device) -> AbstractContextManager[object]:
    """Inside the `with` block, prefer cuDNN's attention on GPUs where it is the fastest. If algorithms must be
    deterministic, PyTorch itself skips it.

    For rows of one length only: cuDNN builds a plan for each new shape, which takes a tenth of a second.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in PREFER_CUDNN:
        return sdpa_kernel(CUDNN_FIRST, set_priority=True)
    return nullcontext()


@contextmanager
def explained_algorithms(deterministic: bool) -> Iterator[None]:
    """Raise `ConfigError` that names training.deterministic if an operation has no deterministic algorithm."""
    try:
        yield
    except RuntimeError as error:
        if deterministic and "deterministic" in str(error):
            raise ConfigError(
                "training.deterministic is true, but the model uses an operation that is not deterministic: "
                f"{str(error).splitlines()[0]}"
            ) from error
        raise


def wrap_objective(
    objective: torch.nn.Module, runtime: Runtime, read_sample: Callable[[], Mapping[str, torch.Tensor]]
) -> torch.nn.Module:
    """Place a model with its loss on the device, and wrap it for several ranks.

    DDP must know whether the loss reaches every parameter (a head may not read a pooler, for example); with several
    ranks, one micro-batch is computed to find out.
    """
    accelerator = runtime.accelerator
    if runtime.ranks > 1:
        objective.to(runtime.device).train()
        with accelerator.autocast():
            loss = objective(**{name: value.to(runtime.device) for name, value in read_sample().items()})
        loss.backward()
        left_out = any(parameter.grad is None for parameter in objective.parameters() if parameter.requires_grad)
        objective.zero_grad(set_to_none=True)
        # Gradients are views of DDP's reduction buckets, and so take no extra memory.
        accelerator.ddp_handler = DistributedDataParallelKwargs(
            find_unused_parameters=runtime.any(left_out), gradient_as_bucket_view=True
        )
    wrapped: torch.nn.Module = accelerator.prepare_model(objective)
    return wrapped


def seed_everything(seed: int, attempt: int, rank: int) -> None:
    """Make random numbers (dropout) a pure function of seed, step attempt and rank, so no generator state is saved."""
    key = stable_key(seed, "rng", attempt, rank)
    random.seed(key)
    np.random.seed(key % 2**32)
    torch.manual_seed(key % 2**63)


def require_shared(store: Store, runtime: Runtime) -> None:
    """Raise `StorageError` unless every rank can read what rank 0 writes. Called by every rank."""
    if runtime.ranks == 1:
        return
    probe = runtime.on_first(lambda: write_probe(store, "shared"), AT_THE_START)
    blind = [rank for rank, sees in enumerate(runtime.on_each(lambda: _sees(store, probe))) if not sees]
    if runtime.rank == 0:
        store.delete(probe)
    if blind:
        raise StorageError(
            f"the store {store.url} is not shared: rank {', '.join(map(str, blind))} of {runtime.ranks} cannot see "
            f"{probe}, which rank 0 wrote; set `store` to a folder or a bucket that all machines of this run reach "
            "under the same name"
        )


def _sees(store: Store, key: str) -> bool:
    try:
        return retry_transient(lambda: store.exists(key), most=AT_THE_START)
    except StorageError as error:
        log.error("%s", error)
        return False


def leave_group() -> None:
    """Leave the other ranks, if there are any."""
    leave_peers()
    if dist.is_initialized():
        dist.destroy_process_group()


def describe_threads(device: torch.device, ranks: int) -> dict[str, Any]:
    """The threads and ranks with which a checkpoint is computed; threads are None on a GPU."""
    return {"threads": torch.get_num_threads() if device.type == "cpu" else None, "ranks": ranks}


def keep_threads(recorded: Computed, runtime: Runtime) -> None:
    """Use as many threads as the checkpoint was computed with; if that is impossible, rank 0 logs a warning.

    With another number of ranks, or after a change between GPU and CPU, results agree only up to rounding anyway.
    """
    before, now = recorded.threads, torch.get_num_threads()
    if runtime.device.type != "cpu" or recorded.ranks != runtime.ranks or before in (None, now):
        return
    asked = threads_asked_for()
    if asked is None and before <= cores_per_rank(usable_cores()):  # a container's CPU limit only makes them slower
        torch.set_num_threads(before)
        return
    if runtime.rank == 0:
        reason = f"{THREADS} is set" if asked else f"a rank has no more cores; {THREADS}={before} keeps them, slowly"
        log.warning(
            "until this checkpoint the run was computed with %d threads, from now on with %d (%s): its results equal "
            "those of an uninterrupted run only up to rounding",
            before, now, reason,
        )  # fmt: skip


COMPUTED_BY = (
    "compile", "cpu_offload", "deterministic", "gradient_checkpointing", "sharding", "sum_each_micro_batch",
)  # fmt: skip
"""Training settings that may change the last bits of a step; a run may continue with others."""


def describe_environment(
    device: torch.device, ranks: int, training: OptimizationConfig, micro_batch: int
) -> dict[str, Any]:
    """Versions of the packages that affect a run's outcome, its devices (of a CPU, its vector instructions), and the
    settings by which they compute.
    """
    cpu = f"CPU, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "packages": versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "threads": torch.get_num_threads(),
        "ranks": ranks,
        "precision": training.precision,
        "micro_batch": micro_batch,
        **{name: getattr(training, name) for name in COMPUTED_BY},
    }
