"""Devices, ranks, precision and threads, from `accelerate`; the checks that this machine has what was asked for.

A CPU's sums are divided among threads, so another number of them gives other last bits: a run keeps the one that it
began with.
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
from trainer.data.order import stable_key
from trainer.store.storage import Store
from trainer.training.checkpoint import Computed
from trainer.training.rank_watchdog import leave_peers, watch_peers

log = logging.getLogger(__name__)


MIXED_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
LONG_WAIT = timedelta(days=7)
"""How long ranks wait for rank 0 to prepare data: longer than any collective of the training may take."""

PREFER_CUDNN = (9, 10)
"""Major compute capabilities of the GPUs (Hopper, Blackwell) on which attention is fastest by cuDNN."""

CUDNN_FIRST = [
    SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
]  # fmt: skip
"""What computes attention, the first that can."""

T = TypeVar("T")


@dataclass(frozen=True)
class Runtime:
    """This process among its ranks."""

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
        """Do something on rank 0 only, however long it takes, and give every rank its result.

        What passes by itself is waited for there, `most` seconds if that is given. Where it fails or is
        stopped, the other ranks end too, with `FirstRankFailed` or `StopRequested`.
        """
        if self.ranks == 1:
            return retry_transient(work, most=most)
        told: list[Any] = [None, None, 0]
        failure: BaseException | None = None
        if self.rank == 0:
            try:
                told[0] = retry_transient(work, most=most)
            except StopRequested as stop:
                failure, told[1] = stop, ""
            except Exception as error:
                failure, told[1:] = error, [f"{type(error).__name__}: {error}", exit_status(error)]
        dist.broadcast_object_list(told, src=0, group=self.control)
        if failure is not None:
            raise failure
        if told[1] is not None:
            raise FirstRankFailed(f"rank 0 ended with {told[1]}", told[2]) if told[1] else StopRequested
        result: T = told[0]
        return result

    def on_each(self, work: Callable[[], T], tell: Callable[[str], object] = log.warning) -> list[T]:
        """Do something on every rank, and give every rank the results of all, in the order of the ranks.

        What passes by itself is waited for on each, which tells of it, as the others know nothing of that. Where the
        store refuses it, on one rank or more, every rank raises the same `StorageError`. Where it fails otherwise, the
        other ranks raise `RankLost`, which tells of it.
        """
        told: tuple[Any, str | None, int, bool] = (None, None, 0, True)
        failure: Exception | None = None
        try:
            told = (retry_transient(work, tell), None, 0, True)
        except Exception as error:
            failure = error
            where = f"rank {self.rank} of {self.ranks} ({socket.gethostname()})"
            why = f"{where} ended with {type(error).__name__}: {error}"
            told = (None, why, exit_status(error), isinstance(error, StorageError))
        found: list[Any] = [told]
        if self.ranks > 1:
            found = [None] * self.ranks
            dist.all_gather_object(found, told, group=self.control)
        failed = [each for each in found if each[1] is not None]
        if not failed:
            return [each[0] for each in found]
        message, statuses = "; ".join(each[1] for each in failed), {each[2] for each in failed}
        if all(each[3] for each in failed):
            raise StorageError(message, statuses == {EXIT_PREEMPTED}) from failure
        raise failure or RankLost(message, min(statuses))

    def with_own_group(self) -> "Runtime":
        """The same ranks, who talk over a process group of their own: for a thread that works beside the training."""
        return Runtime(self.accelerator, dist.new_group(backend="gloo", timeout=LONG_WAIT) if self.ranks > 1 else None)

    def check_stop(self) -> None:
        """Raise `StopRequested` on every rank if one of them was asked to stop, also within what is finishing."""
        if self.any(stop_requested()):
            raise StopRequested

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return bool(self.sum(torch.tensor(int(flag))))

    def wait_for_all(self) -> None:
        """Wait until every rank has come here, for days if need be: what a device's collectives wait for ends in
        minutes.
        """
        self.any(False)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a CPU tensor over the ranks."""
        if self.ranks > 1:
            dist.all_reduce(values, group=self.control)
        return values


def count_gpus(device: str, where: str = "training.") -> int:
    """GPUs to use. Raises `DeviceError` if the job wants them and this machine has none."""
    gpus = torch.cuda.device_count()
    if device == "gpu" and not gpus:
        raise DeviceError(f"{where}device is gpu, but this machine has none; use cpu or auto here")
    return 0 if device == "cpu" else gpus


def check_devices(precision: str, processes: int | None, device: str = "auto", where: str = "training.") -> None:
    """Raise `DeviceError` if this machine lacks the precision or the number of devices; `where` the job says those."""
    gpus = count_gpus(device, where)
    if precision == "fp16" and not gpus:
        raise DeviceError(f"{where}precision is fp16, but this machine has no GPU; use fp32 or bf16 here")
    if precision == "bf16" and gpus and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise DeviceError(f"{where}precision is bf16, which this GPU does not have, or only emulates; use fp16 or fp32")
    available, unit = (gpus, "GPUs") if gpus else (usable_cores(), "cores and no GPU")
    if (processes or 1) > available:
        raise DeviceError(f"{where}processes is {processes}, but this machine has {available} {unit}")


def planned_ranks(processes: int | None, device: str = "auto") -> int:
    """Ranks that the pipeline starts: as given, else one a GPU, or one."""
    return processes or max(1, count_gpus(device))


def start_runtime(precision: str, device: str = "auto", deterministic: bool = False) -> Runtime:
    """Join the other ranks, if a launcher started several, and compute with as many threads as there are cores for
    each.

    OMP_NUM_THREADS says otherwise. Raises `ConfigError` if it is no number, or if accelerate's configuration
    contradicts the precision or the device, `DeviceError` if it started fewer processes than it was asked for.
    """
    choose_algorithms(deterministic)
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if launched and launched != MIXED_PRECISION[precision]:
        raise ConfigError(
            f"accelerate's configuration says mixed precision {launched!r}, the job's training.precision is "
            f"{precision!r}; make them the "
            f"same{' (`no` is what accelerate says where nothing is set)' if launched == 'no' else ''}"
        )
    use_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower()
    on_cpu = use_cpu in ("1", "true", "yes")
    if on_cpu and device == "gpu":
        raise ConfigError(
            "accelerate's configuration says use_cpu, the job's training.device is 'gpu'; make them the same"
        )
    cpu = on_cpu or not count_gpus(device)
    if device == "cpu" and use_cpu in ("0", "false") and torch.cuda.is_available():
        raise ConfigError(
            "accelerate's configuration says use_cpu false, the job's training.device is 'cpu'; make them the same"
        )
    ranked = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"} & os.environ.keys()
    if "ACCELERATE_USE_CPU" in os.environ and "MASTER_ADDR" in os.environ and not ranked:
        # accelerate sets an address for several processes, and then starts only one where there is no mpirun.
        raise DeviceError(
            "accelerate was asked for several CPU processes, but started one: that needs mpirun; "
            "use `torchrun --nproc-per-node N -m trainer CONFIG.yaml`"
        )
    if os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1") != "1":
        raise ConfigError("accelerate's configuration sets gradient accumulation; set training.micro_batch instead")
    if not dist.is_initialized():  # else accelerate would keep the precision and the device of this process's first run
        AcceleratorState._reset_state(reset_partial_state=True)
    if not cpu:  # torch since 2.11 takes cuDNN first for every shape; it reads this when it first computes attention
        os.environ.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    accelerator = Accelerator(mixed_precision=MIXED_PRECISION[precision], cpu=cpu)
    if cpu:  # after accelerate, which may set a number of its own
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
    """Have PyTorch take the algorithms that give the same bits every time, or the fastest; before a GPU computes
    anything.

    Those of cuBLAS need workspaces of their own (NVIDIA's documentation of cuBLAS, "Results reproducibility").
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    # Nothing here reads what was not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def prefer_cudnn_attention(device: torch.device) -> AbstractContextManager[object]:
    """For the length of a block, have PyTorch compute attention by cuDNN where that can, if it is the fastest on a GPU.
    Where algorithms are to be deterministic PyTorch itself passes it over.

    It is for rows of one length: for each other shape cuDNN makes a plan, which takes a tenth of a second.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in PREFER_CUDNN:
        return sdpa_kernel(CUDNN_FIRST, set_priority=True)
    return nullcontext()


@contextmanager
def explained_algorithms(deterministic: bool) -> Iterator[None]:
    """Say which setting asks for it where an operation has no algorithm that gives the same bits: a `ConfigError`."""
    try:
        yield
    except RuntimeError as error:
        if deterministic and "deterministic" in str(error):
            raise ConfigError(
                f"training.deterministic is true, and the model needs what cannot be so: {str(error).splitlines()[0]}"
            ) from error
        raise


def wrap_objective(
    objective: torch.nn.Module, runtime: Runtime, read_sample: Callable[[], Mapping[str, torch.Tensor]]
) -> torch.nn.Module:
    """Put a model with its loss on the device, and among its ranks.

    Of several ranks, DDP must be told if the loss does not reach every parameter (a pooler that a head does not read,
    say); a micro-batch is tried to see that.
    """
    accelerator = runtime.accelerator
    if runtime.ranks > 1:
        objective.to(runtime.device).train()
        with accelerator.autocast():
            loss = objective(**{name: value.to(runtime.device) for name, value in read_sample().items()})
        loss.backward()
        left_out = any(parameter.grad is None for parameter in objective.parameters() if parameter.requires_grad)
        objective.zero_grad(set_to_none=True)
        # Gradients that are views of the buckets that DDP reduces take no memory of their own.
        accelerator.ddp_handler = DistributedDataParallelKwargs(
            find_unused_parameters=runtime.any(left_out), gradient_as_bucket_view=True
        )
    wrapped: torch.nn.Module = accelerator.prepare_model(objective)
    return wrapped


def seed_everything(seed: int, attempt: int, rank: int) -> None:
    """Make what follows (dropout) a pure function of seed, step attempt and rank, so no generator state need be
    kept.
    """
    key = stable_key(seed, "rng", attempt, rank)
    random.seed(key)
    np.random.seed(key % 2**32)
    torch.manual_seed(key % 2**63)


def require_shared(store: Store, runtime: Runtime) -> None:
    """Raise `StorageError` unless every rank sees what the first one writes. Called by every rank."""
    if runtime.ranks == 1:
        return
    probe = runtime.on_first(store.write_probe, AT_THE_START)
    seen = torch.zeros(runtime.ranks, dtype=torch.int64)
    seen[runtime.rank] = _sees(store, probe)
    blind = [rank for rank, sees in enumerate(runtime.sum(seen).tolist()) if not sees]
    if runtime.rank == 0:
        store.delete(probe)
    if blind:
        raise StorageError(
            f"the store {store.url} is not shared: rank {', '.join(map(str, blind))} of {runtime.ranks} cannot see "
            f"{probe}, which rank 0 has written there; name a folder or a bucket that all machines of this run see "
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
    """What a checkpoint records of how it was computed; no threads where a GPU computes."""
    return {"threads": torch.get_num_threads() if device.type == "cpu" else None, "ranks": ranks}


def keep_threads(recorded: Computed, runtime: Runtime) -> None:
    """Go on with as many threads as a checkpoint was computed with; a warning, on rank 0, where that cannot be.

    On another number of ranks, or from a GPU to a CPU or back, results are equal to rounding only in any case.
    """
    before, now = recorded.threads, torch.get_num_threads()
    if runtime.device.type != "cpu" or recorded.ranks != runtime.ranks or before in (None, now):
        return
    asked, cores = threads_asked_for(), cores_per_rank()
    if asked is None and before <= cores:
        torch.set_num_threads(before)
        return
    if runtime.rank == 0:
        reason = f"{THREADS} says so" if asked else f"a rank has no more cores; {THREADS}={before} keeps them, slowly"
        log.warning(
            "until this checkpoint the run was computed with %d threads, from now on with %d (%s): what comes out "
            "equals that of an uninterrupted run to rounding, not to the last bit",
            before, now, reason,
        )  # fmt: skip


def describe_environment(device: torch.device, ranks: int, precision: str) -> dict[str, Any]:
    """Versions of the packages that decide a run's outcome, and the devices that it used."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "packages": versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "ranks": ranks,
        "precision": precision,
    }
