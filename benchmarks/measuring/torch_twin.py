"""The two nets in PyTorch, trained by DistributedDataParallel over gloo.

Layers, first values, optimizer and loss are those of nets.py. Rows are taken
by index from a tensor that is shuffled each epoch, which is faster than a
`DataLoader`, and accuracy is counted as in the other contenders. A cluster is
given by the environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from measuring import nets
from measuring.job import Clock, Job


def run(job: Job) -> dict[str, Any]:
    """Train alone, or as one process of a cluster on its share of each global batch."""
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    model: nn.Module = _net(job.net)
    if size > 1:
        distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-7)
    loss_of = nn.CrossEntropyLoss()
    x, y = (torch.from_numpy(each) for each in nets.arrays(job.net, job.rows))
    if job.net == "convolutional":
        x = x.permute(0, 3, 1, 2).contiguous()
    generator = torch.Generator().manual_seed(0)
    share = job.batch // size
    clock = Clock(job)
    mean = 0.0
    for epoch in range(job.epochs + 1):
        clock.epoch_begins(epoch)
        order = torch.randperm(job.rows, generator=generator).view(-1, size, share)
        total, correct = torch.zeros(()), torch.zeros(())
        for step in range(job.epoch_steps):
            rows = order[step, rank]
            inputs, labels = x[rows], y[rows]
            optimizer.zero_grad()
            logits = model(inputs)
            loss = loss_of(logits, labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            correct += (logits.detach().argmax(1) == labels).sum()
        sums = torch.stack([total, correct])
        if size > 1:
            distributed.all_reduce(sums)
        mean = float(sums[0]) / size / job.epoch_steps
        clock.epoch_ends()
    if size > 1:
        distributed.destroy_process_group()
    return clock.result(mean)


def _net(name: str) -> nn.Module:
    if name == "dense":
        body: list[nn.Module] = [
            nn.Linear(784, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, nets.CLASSES),
        ]
    else:
        body = [
            nn.Conv2d(1, 16, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 5 * 5, nets.CLASSES),
        ]
    torch.manual_seed(0)
    for layer in body:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*body)
