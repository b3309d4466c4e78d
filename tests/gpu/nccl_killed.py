# SPDX-License-Identifier: Apache-2.0
"""Starts N ranks; rank 0 kills itself in the middle of all-reduces. Every other rank must be told; nccl.sh reads NCCL's lines.

  nccl_killed.py RANKS

Says which ranks do not end by themselves: PyTorch then has NCCL abort the communicator, and with NCCL 2.28.9 that did not return within a minute, over the plug-in or over NCCL's own sockets.
Exit 0: nobody ended as if all were well. Not under torchrun, which would end the others itself.
"""
import os
import signal
import socket
import subprocess
import sys
import time

STEP, LIMIT_S = 50, 20


def rank():
    import torch
    import torch.distributed as dist
    me = int(os.environ["RANK"])
    torch.cuda.set_device(me % torch.cuda.device_count())
    dist.init_process_group("nccl")
    x = torch.ones(1 << 20, device="cuda")
    for step in range(100000):
        dist.all_reduce(x)
        torch.cuda.synchronize()
        x.fill_(1)
        if me == 0 and step == STEP:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    n = int(sys.argv[1])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    # This process holds the store, so that it outlives rank 0. PyTorch's dump of the collective is off: nobody reads it.
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(n), TORCH_NCCL_ASYNC_ERROR_HANDLING="1",
               TORCHELASTIC_USE_AGENT_STORE="True", TORCH_NCCL_DUMP_ON_TIMEOUT="0", TORCH_FR_BUFFER_SIZE="0", TORCH_NCCL_TRACE_BUFFER_SIZE="0")
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    ranks = [subprocess.Popen([sys.executable, __file__], env=dict(env, RANK=str(r), LOCAL_RANK=str(r))) for r in range(n)]
    wrong = ranks[0].wait() != -signal.SIGKILL
    end = time.monotonic() + LIMIT_S
    for r in ranks[1:]:
        try:
            wrong |= r.wait(max(0.0, end - time.monotonic())) == 0
        except subprocess.TimeoutExpired:
            print(f"# rank {ranks.index(r)} did not end within {LIMIT_S} s of its loss", flush=True)
            r.kill()
    del store
    return int(wrong)


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank()
    else:
        sys.exit(main())
