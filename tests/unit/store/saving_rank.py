"""A rank that saves its share of a snapshot and prints how that went: `saving_rank.py STORE...`, one for each rank."""

import os
import sys
from datetime import timedelta

import torch

from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.errors import StoreError
from rlhf_store.retention import Retention
from rlhf_store.store import StoreOptions
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.ranks.ranks import Ranks


def main(stores: list[str]) -> None:
    ranks = Ranks.join(0)
    archive = Archive(stores[ranks.rank], StoreOptions(timedelta(seconds=1)))
    committer = Committer.take_over(archive, Retention(last=2)) if ranks.first else None
    saver = Saver(ranks, archive, committer, committed=lambda _snapshot: print("saved"))
    weights = {str(i): torch.full((4,), float(i)) for i in range(8)}
    saver.begin(1, {}, {"model": weights.items(), "critic": weights.items()}, {})
    try:
        saver.finish()
    except StoreError as error:
        print(error)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
