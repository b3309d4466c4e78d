#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a Megatron training in which rank 1 is lost, stopped or late in the middle of a step: faults_rank.py RANK FOLDER FAULT [STEPS].

FAULT: none; kill, stop: the signal, sent by rank 1 to itself when step 2 begins; late: rank 1 waits then for the file FOLDER/go, as one that compiles would;
paced: after each step all ranks wait for the file FOLDER/STEP. Prints "step N" when all ranks have reached it.
"""
import argparse
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/frameworks"))

import megatron_rank  # noqa: E402

RANKS, STEPS, VICTIM, AT = 3, 5, 1, 2
SMALL = {"ranks": RANKS, "hidden": 128, "ffn": 64, "experts": 6, "seq": 32, "vocab": 256, "steps": STEPS}


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.02)


def main(rank, folder, fault, steps=STEPS):
    def on_step(step):
        print(f"step {step}", flush=True)
        if fault == "paced":
            wait_for(f"{folder}/{step}")
        elif fault != "none" and (rank, step) == (VICTIM, AT):
            if fault == "late":
                wait_for(f"{folder}/go")
            else:
                os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    megatron_rank.train(argparse.Namespace(**{**megatron_rank.SIZES, **SMALL, "steps": int(steps)}, lr=0.05, rank=rank, folder=folder, dispatcher="flex", first=0, load=None,
                                           save=None, shares=False), on_step)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
