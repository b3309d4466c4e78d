# SPDX-License-Identifier: Apache-2.0
"""Starts N ranks; rank 0 kills itself in the middle of all-reduces, and every other rank must end by itself, with an error, within a minute.

  nccl_killed.py RANKS

Exit 0: they did. Started by nccl.sh, which reads NCCL's lines. Not under torchrun, which would end the others itself.
"""
import os
import signal
import socket
import subprocess
import sys

STEP, LIMIT_S = 50, 60


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
    # The store is a rank of its own, so that it does not end with rank 0.
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(n), TORCH_NCCL_ASYNC_ERROR_HANDLING="1",
               TORCHELASTIC_USE_AGENT_STORE="True")
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    ranks = [subprocess.Popen([sys.executable, __file__], env=dict(env, RANK=str(r), LOCAL_RANK=str(r))) for r in range(n)]
    wrong = ranks[0].wait() != -signal.SIGKILL
    for r in ranks[1:]:
        try:
            wrong |= r.wait(LIMIT_S) == 0
        except subprocess.TimeoutExpired:
            print(f"rank {ranks.index(r)} waits for ever", flush=True)
            r.kill()
            wrong = True
    del store
    return int(wrong)


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank()
    else:
        sys.exit(main())
