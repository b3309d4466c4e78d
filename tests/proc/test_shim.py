#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that use NVSHMEM as a compiled DeepEP does, served by the preloaded shim: rank processes, with CPU code instead of kernels.

  test_shim.py SHIM_LIBRARY SHIM_RANK EP_FABRIC DEEP_EP_MODULE TORCH_MODULE

Memory is host memory (gpu-backend=fake, shim-host-heap), the NIC is the software NIC. Calls of NVSHMEM from other modules reach the stand-in
for the real library before, during and after. Time limits are long, so that a busy machine does not fail.
"""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TIME_S = 150
MODULES = sys.argv[4:6]


def environment(library, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("EPF_", "NVSHMEM_", "CUDA_"))}
    env.update(EPF_GPU_BACKEND="fake", EPF_SHIM_HOST_HEAP="yes", NVSHMEM_SYMMETRIC_SIZE="64M", EPF_NIC="emu", EPF_LOG="note",
               NVSHMEM_IBGDA_NUM_RC_PER_PE="4", NVSHMEM_QP_DEPTH="128", NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME="lo", EPF_WAIT_TIMEOUT="100s",
               EPF_EMU_PACKETS="512", EPF_SHIM_MODULES="deep_ep_standin")
    if library:
        env["LD_PRELOAD"] = library
    env.update(more)
    return env


def play(rank_program, world, env, version="3.4.5", before=(), jobs=1, services=()):
    """Runs one or several jobs at once; returns exit statuses and output. Rank r uses services[r modulo their number]."""
    with tempfile.TemporaryDirectory(prefix="epf-shim-") as folder:
        env = dict(env, XDG_RUNTIME_DIR=folder)
        envs = [dict(env, EPF_SERVICE=services[r % len(services)]) if services else env for r in range(world)]
        ranks = [subprocess.Popen([*before, rank_program, str(r), str(world), os.path.join(folder, f"id{j}"), version, *MODULES], env=envs[r], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for r in range(world) for j in range(jobs)]
        said, codes = "", []
        try:
            for p in ranks:
                said += p.communicate(timeout=TIME_S)[0]
                codes.append(p.returncode)
        except subprocess.TimeoutExpired:
            said += f"\nnot over after {TIME_S} s"
            codes.append(-1)
        finally:
            for p in ranks:
                if p.poll() is None:
                    p.kill()
                    p.wait()
        return codes, said


def play_by_daemons(rank_program, env, ep_fabric, jobs, many):
    """The same for jobs of two ranks served by one daemon, or by a daemon each (two nodes)."""
    with tempfile.TemporaryDirectory(prefix="epf-shim-") as folder:
        sockets = [os.path.join(folder, f"node{n}.sock") for n in range(many)]
        daemons = [subprocess.Popen([ep_fabric, "run", "--instance", f"node{n}", "--runtime-dir", folder, "--stats-dir", folder, "--nic=emu"],
                                    env=environment(None), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for n in range(many)]
        said = ""
        try:
            end = time.monotonic() + 30
            while not all(map(os.path.exists, sockets)) and all(d.poll() is None for d in daemons) and time.monotonic() < end:
                time.sleep(0.02)
            codes, said = play(rank_program, 2, env, jobs=jobs, services=sockets)
        finally:
            for daemon in daemons:
                daemon.terminate()
            for daemon in daemons:
                try:
                    said += daemon.communicate(timeout=30)[0]
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    said += daemon.communicate()[0]
        return codes, said


def with_daemon_of_its_own(library, rank, ep_fabric):
    """ep-fabric shim --daemon; returns what is wrong, or None. Two ranks as one program; exit statuses; a terminated or killed launcher leaves no daemon."""
    def left(folder):
        return [n for n in os.listdir(folder) if n.startswith("epf-shim-")]

    def daemon_of(said):
        return int(re.search(r"daemon shim-\d+ \(process (\d+)\)", said).group(1))

    def ended(pid):
        end = time.monotonic() + 30
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
            time.sleep(0.05)
        return not os.path.exists(f"/proc/{pid}")

    with tempfile.TemporaryDirectory(prefix="epf-") as folder:
        env = environment(None, XDG_RUNTIME_DIR=folder)
        words = [ep_fabric, "shim", "--library", library, "--daemon", "--"]

        def run(*program, **more):
            p = subprocess.run([*words, *program], env=dict(env, **more), capture_output=True, text=True, timeout=TIME_S, check=False)
            return p.returncode, p.stdout + p.stderr

        code, said = run("/bin/sh", "-c", '"$0" 0 2 "$@" & first=$!; "$0" 1 2 "$@"; second=$?; wait $first && exit $second', rank, os.path.join(folder, "id"), "3.4.5", *MODULES)
        if code or said.count(" 0 refusals") != 2 or said.count("fabric service:shim-") != 2 or "1 jobs served" not in said or not ended(daemon_of(said)):
            return said
        code, said = run("/bin/sh", "-c", "exit 7")
        if code != 7:
            return f"status {code}, not 7: {said}"
        deep = os.path.join(folder, "d" * 100)  # too long for a socket's name
        os.mkdir(deep)
        code, said = run("/bin/sh", "-c", "echo ran", XDG_RUNTIME_DIR=deep)
        if code != 1 or "ran\n" in said or "did not start" not in said:
            return f"the daemon did not start: {code} {said}"
        if left(folder) + left(deep):
            return f"left behind: {left(folder) + left(deep)}"
        for number, status in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)):
            with subprocess.Popen([*words, "/bin/sh", "-c", "echo $$; exec sleep 100"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
                program = int(p.stdout.readline())
                said = ""
                while "serves it and ends" not in said and not said.endswith("\n\n"):
                    said += p.stderr.readline() or "\n\n"
                p.send_signal(number)
                code = p.wait(timeout=30)
                gone = ended(daemon_of(said))
                if number == signal.SIGKILL:
                    os.kill(program, signal.SIGKILL)
            if code != status or not gone:
                return f"signal {number}: status {code}, daemon gone: {gone}: {said}"
    return None


def look(ep_fabric, *words, **more):
    """Runs ep-fabric shim --dry-run; returns status and output."""
    p = subprocess.run([ep_fabric, "shim", "--dry-run", *words], env=environment(None, **more), capture_output=True, text=True, timeout=TIME_S, check=False)
    return p.returncode, p.stdout + p.stderr


def by_folder(ep_fabric, library, module):
    """A module is named by its file or by its own folder, by no other part of its path; returns the first wrong answer, or None."""
    with tempfile.TemporaryDirectory(prefix="epf-shim-") as folder:
        for place, is_named in (("deep_ep/_C.so", True), ("x/deep_ep_cpp.so", True), ("deep_ep.libs/_C.so", False), ("deep_ep/x/_C.so", False), ("_deep_ep/_C.so", False)):
            path = os.path.join(folder, place)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            shutil.copy(module, path)
            code, said = look(ep_fabric, "--library", library, "--module", path, EPF_SHIM_MODULES="deep_ep")
            if code != (0 if is_named else 1) or ("not named" in said) == is_named:
                return f"{place}: status {code}: {said}"
    return None


def damaged(ep_fabric, module):
    """A truncated or altered module is refused without a crash; returns the first wrong status, or None."""
    with open(module, "rb") as f:
        whole = f.read()
    dice = random.Random(7)
    with tempfile.TemporaryDirectory(prefix="epf-shim-") as folder:
        path = os.path.join(folder, "deep_ep_standin.so")
        for turn in range(60):
            data = bytearray(whole[:dice.randrange(len(whole))] if turn % 2 else whole)
            for _ in range(turn % 5 and len(data) and 8):
                data[dice.randrange(min(len(data), 64) if turn % 3 else len(data))] = dice.randrange(256)
            with open(path, "wb") as f:
                f.write(data)
            code, said = look(ep_fabric, "--module", path)
            if code not in (0, 1) or not said:
                return f"turn {turn}: status {code}: {said}"
    return None


def main(library, rank, ep_fabric, deep_ep, torch):
    failed = 0

    def judge(name, holds, said):
        nonlocal failed
        print(("ok - " if holds else "not ok - ") + name, flush=True)
        if not holds:
            failed += 1
            print("\n".join("# " + line for line in said.splitlines()[-30:]), flush=True)

    unordered = {"EPF_EMU_ORDER": "unordered", "EPF_EMU_REORDER": "0.3", "EPF_EMU_DUPLICATE": "0.1", "EPF_EMU_DROP": "0.02"}
    for world, what, more in ((1, "one rank", {}), (2, "two ranks", {}), (3, "three ranks, an unordered NIC that drops and duplicates", unordered)):
        codes, said = play(rank, world, environment(library, **more))
        served = said.count(" puts of ") == world and "0 refusals" in said
        judge(f"{what}: rows, counts, barriers, queues, teams; another NVSHMEM user", codes == [0] * world and served, said)
    # As in DeepEP's normal mode, where ranks of one index in their nodes are a separate NVSHMEM job.
    codes, said = play(rank, 2, environment(library), jobs=4)
    judge("four jobs of two ranks side by side", codes == [0] * 8 and said.count(" puts of ") == 8 and said.count(" 0 refusals") == 8, said)
    for many in (1, 2):
        codes, said = play_by_daemons(rank, environment(library), ep_fabric, 8, many)
        served = said.count(" 0 refusals") == 16 and said.count("8 jobs served") == many and said.count(", 0 peers mapped, fabric service:") == 16
        judge(f"eight jobs of two ranks by {many} daemons", codes == [0] * 16 and served, said)
    for version in ("3.5.1", "3.5.19", "3.5.21", "3.6.5", "3.7.0", "3.7.2", "3.8.0"):
        codes, said = play(rank, 3, environment(library), version)
        judge(f"NVSHMEM {version} is served", codes == [0] * 3 and f"NVSHMEM {version}, heap" in said, said)
    for version in ("3.3.9", "3.5.20", "3.6.0"):
        codes, said = play(rank, 1, environment(library), version)
        judge(f"NVSHMEM {version} is refused with an error that names both versions", codes == [3] and version in said and "3.4.5, 3.5.1" in said and "EPF-800" in said, said)
    codes, said = play(rank, 1, environment(None))
    judge("without the shim the program fails", codes == [1], said)
    codes, said = play(rank, 1, environment(library, EPF_SHIM_MODULES="somebody_else"))
    judge("a module that is not named is not served", codes == [1], said)
    codes, said = play(rank, 1, environment(library, NVSHMEM_SYMMETRIC_SIZE="1M"))
    judge("an invalid heap size is reported", codes == [0] and "outside 64MiB" in said, said)
    judge("an allocation that does not fit is reported", "EPF-802" in said and "raise shim-heap" in said, said)
    codes, said = play(rank, 2, environment(None), before=(ep_fabric, "shim", "--library", library, "--"))
    judge("ep-fabric shim starts a program with the shim and reports its settings", codes == [0, 0] and "nic=emu" in said and "0 refusals" in said, said)
    wrong = with_daemon_of_its_own(library, rank, ep_fabric)
    judge("ep-fabric shim --daemon: its daemon serves the program, and ends with it or with the launcher", wrong is None, str(wrong))
    for more, want in (({"EPF_SHIM_HOST_HEAP": "no"}, "EAGER"), ({}, None), ({"EPF_SHIM_HOST_HEAP": "no", "EPF_SERVICE": "node"}, None),
                       ({"EPF_SHIM_HOST_HEAP": "no", "CUDA_MODULE_LOADING": "LAZY"}, "LAZY")):
        p = subprocess.run([ep_fabric, "shim", "--library", library, "--", sys.executable, "-c", "import os; print(os.environ.get('CUDA_MODULE_LOADING'))"],
                           env=environment(None, **more), capture_output=True, text=True, timeout=TIME_S, check=False)
        judge(f"kernels are loaded eagerly where the software NIC needs it: {more} gives {want}", p.stdout.strip() == str(want), p.stdout + p.stderr)
    code, said = look(ep_fabric, "--library", library, "--module", deep_ep, "--", rank)
    judge("--dry-run of a supported module", code == 0 and "12 symbols of NVSHMEM, all served" in said, said)
    code, said = look(ep_fabric, "--library", library, "--module", torch, "--", "no-such-program")
    judge("--dry-run gives the reason for an unsupported module", code == 1 and "nvshmem_malloc" in said and "not named" in said and "no-such-program" in said, said)
    wrong = by_folder(ep_fabric, library, deep_ep)
    judge("modules are named by file and by folder", wrong is None, str(wrong))
    wrong = damaged(ep_fabric, deep_ep)
    judge("damaged modules are refused", wrong is None, str(wrong))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:6]))
