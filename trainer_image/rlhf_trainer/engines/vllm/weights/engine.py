"""vLLM's weight-transfer engine: receives new weights beside the old ones and swaps on commit."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from ....process import faults
from ....weights.buckets import Spec
from ....weights.group import Group, connect_store
from ..serve.watchdog import end_soon
from .copy_plan import Named
from .held import HeldBase, Weights
from .receiver import Received, Reception
from .served import Served
from .swap import Swap
from .weight_check import Table, architecture_table, check_fits, checkpoint_table, most_bytes

log = logging.getLogger("vllm.rlhf")  # below vLLM's logger, so that it goes where vLLM's lines go


@dataclass
class JoinInfo(WeightTransferInitInfo):
    """Join membership epoch `epoch` of the trainer whose store is at host:port, where messages have an HMAC with
    `secret`; `rank_offset` is the rank of this server's first worker, `world_size` counts all workers and the
    trainer."""

    host: str
    port: int
    epoch: str
    secret: str = field(repr=False)
    rank_offset: int
    world_size: int
    timeout_s: float


@dataclass
class ReceiveInfo(WeightTransferUpdateInfo):
    """Receive update number `update` of `epoch`, for weight version `version`: whole weights; or the frozen base named
    `base`, to keep; or what is trained beside that base or merged into it, see `weights.base.Base`."""

    epoch: str
    update: int
    version: int
    part: Literal["whole", "base", "trained"] = "whole"
    base: str | None = None
    scale: float = 1.0
    transposed: tuple[str, ...] = ()


class BroadcastEngine(WeightTransferEngine[JoinInfo, ReceiveInfo]):
    init_info_cls = JoinInfo
    update_info_cls = ReceiveInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group: Group | None = None
        self.epoch: str | None = None
        self.announced: int | None = None
        self.reception: Reception | None = None
        self.base: HeldBase | None = None  # frozen weights, which later updates are put beside
        self.version: int | None = None  # version that serves; None: the checkpoint's weights
        self.digest: str | None = None
        tied = getattr(self.model_config.hf_config.get_text_config(), "tie_word_embeddings", False)
        self.optional = frozenset({"lm_head.weight"}) if tied else frozenset()

    @cached_property
    def tables(self) -> list[Table]:
        """Tables of tensors that fit this model; computed at the first update, to keep it out of the start-up time."""
        made = (
            checkpoint_table(Path(self.model_config.model)),
            architecture_table(self.model_config.hf_config),
        )
        tables = [table for table in made if table]
        if not tables:
            log.warning(
                "cannot list the weights that %s expects, so those received are not checked",
                self.model_config.model,
            )
        return tables

    @cached_property
    def swap(self) -> Swap:
        return Swap(self.model, self.model_config, self.device)

    @cached_property
    def served(self) -> Served:
        return Served(self.model)

    @cached_property
    def stream(self) -> torch.cuda.Stream | None:
        """CUDA stream for receiving. Kept for good: torch ties memory to the stream that it was used on."""
        return torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        self.shutdown()
        store = connect_store(init_info.host, init_info.port, init_info.epoch, init_info.timeout_s)
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self.group = Group(
            store,
            init_info.epoch,
            init_info.secret,
            rank,
            init_info.world_size,
            init_info.timeout_s,
            torch.device(self.device),
        )
        self.epoch = init_info.epoch
        log.info("joined weight epoch %s as rank %d of %d", self.epoch, rank, init_info.world_size)

    def shutdown(self) -> None:
        """Leaves the epoch and drops staged weights; the serving weights stay."""
        self.reception = None
        group, self.group, self.epoch = self.group, None, None
        if group is not None:
            group.abort()

    @property
    def staged(self) -> Received | None:
        return self.reception.received if self.reception else None

    @property
    def failure(self) -> str | None:
        return self.reception.failure if self.reception else None

    def start_weight_update(self) -> None:
        self.reception = None
        self.served.prove()  # and free what arrived: there is memory for one copy beside the serving weights

    # The base class calls torch.accelerator.synchronize(), which raises on CPU.
    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: ReceiveInfo) -> None:
        info = update_info
        if info.part != "base":
            self.announced = info.version
        if self.group is None or info.epoch != self.epoch:
            raise RuntimeError(f"asked for weights of epoch {info.epoch}, but joined {self.epoch}")
        if info.part == "trained" and (self.base is None or self.base.name != info.base):
            raise RuntimeError(f"asked for weights beside base {info.base}, which this engine does not hold")
        if info.part != "trained":
            self.base = None  # memory for one copy beside the serving weights
        self.reception = Reception(
            self.group,
            info.update,
            info.version,
            most=most_bytes(self.tables),
            fit=self._fitting(info),
            stream=self.stream,
        )

    def _fitting(self, info: ReceiveInfo) -> Callable[[Named], Weights | HeldBase]:
        """Function that turns the received tensors into `Weights` or a `HeldBase`; it raises ValueError where they do
        not fit.
        """
        # Not on the thread: Transformers changes torch's default dtype while it makes a model.
        tables, base = self.tables, self.base

        def fit(came: Named) -> Weights | HeldBase:
            if info.part == "base":
                return HeldBase(str(info.base), came)
            weights = Weights(came) if base is None else base.with_trained(came, info.scale, info.transposed)
            check_fits([Spec.of(*named) for named in weights.plain], tables, optional=self.optional)
            return weights

        return fit

    def finish_weight_update(self) -> None:
        """Swaps in the staged weights, or keeps them if they are a base; a no-op if nothing was received (an abandoned
        update)."""
        staged, self.reception = self.staged, None
        if staged is None:
            return
        if isinstance(staged.weights, HeldBase):
            self.base = staged.weights
            return
        faults.point(f"swap:{staged.version}")
        try:
            with torch.no_grad():
                self.swap.load(staged.weights)
        except BaseException as error:
            # The model is a mix of old and new weights. The engine stays paused until this process has ended.
            end_soon(f"the swap to weight version {staged.version} failed: {error}")
            raise
        self.version, self.digest = staged.version, staged.digest
        base_parts = self.base.parts if self.base else ()
        self.served.loaded(staged.version, self.swap.arrived(staged.weights), base_parts)
        log.info("serving weight version %s, digest %s", self.version, self.digest)

    def release(self) -> None:
        """Verifies the serving weights once more, and forgets them, and the base: their memory is given back next."""
        self.served.recheck()
        self.served.forget()
        self.reception = self.base = self.version = self.digest = None

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        raise NotImplementedError("the trainer sends with rlhf_trainer.weights.broadcaster.Broadcaster")
