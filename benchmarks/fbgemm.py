"""FBGEMM's CPU table-batched embedding; race.py. Runs where PyTorch is installed."""

from __future__ import annotations

import os

import fbgemm_gpu  # noqa: F401  (registers its ops)
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from benchmarks.cases import FBGEMM_1, KernelCase
from benchmarks.data import Bags, bag_batches, output_gradient, table
from benchmarks.gate import Gate


def tensors(bags: Bags) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of all tables, and where each bag begins."""
    lengths = np.concatenate([[0], *bags.lengths])
    return torch.from_numpy(np.concatenate(bags.ids)), torch.from_numpy(
        np.cumsum(lengths)
    )


def main() -> None:
    gate = Gate()
    case = KernelCase.from_dict(gate.job["case"])
    threads = case.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(1 if gate.job["contender"] == FBGEMM_1 else threads)
    batches = [tensors(bags) for bags in bag_batches(case)]
    gate.imported()
    spec = (case.rows, case.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)
    embedding = SplitTableBatchedEmbeddingBagsCodegen(
        [spec] * case.tables,
        optimizer=EmbOptimType.EXACT_ADAGRAD,
        learning_rate=0.01,
        eps=0.0,
        pooling_mode=PoolingMode.SUM,
    )
    for i, weights in enumerate(embedding.split_embedding_weights()):
        weights.copy_(torch.from_numpy(table(case, i)))
    for (state,) in embedding.split_optimizer_states():
        state.fill_(0.1)  # where TensorFlow's Adagrad begins
    gradient = torch.from_numpy(output_gradient(case))

    def step(batch):
        if case.kind == "update":
            embedding(*batch).backward(gradient)
            return None
        with torch.no_grad():
            return embedding(*batch)

    going = gate.ready()
    while going:
        step(batches[gate.count % len(batches)])
        going = gate.step()
    if case.kind == "update":
        result = embedding.split_embedding_weights()[0]
    else:
        result = step(batches[0])
    gate.finish(checksum=float(result.detach().abs().double().sum()))


if __name__ == "__main__":
    main()
