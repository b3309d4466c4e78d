#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepEP V2's own interface test, tests/elastic/test_ep.py, on our ElasticBuffer.

    elastic_v2.py DEEPEP-TREE [--num-processes N] [options of the test]

The test, and the reference and the routing that it takes from deep_ep.utils (refs, gate), are those of the tree; everything else is ours. Where PyTorch
has no GPU it runs on CPU tensors over gloo: then "cuda" is read as "cpu", and nothing else differs. NODES=a,b: the node of each rank. Exit 77: no such
tree.
"""
import os
import sys
import types

OURS = "+epf"
# What takes the place of DeepEP's kernels, whose times the test asks for by name.
KERNELS = {"dispatch_impl": "ht::dispatch", "dispatch_copy_epilogue_impl": "ht::spread", "combine_impl": "ht::combine", "combine_reduce_epilogue_impl": "ht::fold"}
NO_KERNEL = 1e-9  # seconds: the test divides by it


def load(path, name):
    """The names of a file that is run as a module of some name, on the device that there is."""
    import torch
    with open(path, encoding="utf-8") as f:
        source = f.read()
    if not torch.cuda.is_available():
        source = source.replace("device='cuda'", "device='cpu'").replace("torch.cuda.synchronize()", "None")
    module = types.ModuleType(name)
    module.__file__, module.__package__ = path, "deep_ep.utils"
    if name != "__main__":
        sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def test(tree, name):
    """The test; with the name __main__ it calls torch.multiprocessing.spawn."""
    import deep_ep
    import deep_ep.utils.envs
    if not deep_ep.__version__.endswith(OURS):
        sys.exit(f"{deep_ep.__file__} is not ours")
    for part in ("gate", "refs"):
        load(f"{tree}/deep_ep/utils/{part}.py", f"deep_ep.utils.{part}")
    return load(f"{tree}/tests/elastic/test_ep.py", name)


def as_bytes():
    """Lets the reference's all-to-all move every type: gloo knows fewer than NCCL."""
    import torch
    import torch.distributed as dist
    plain = dist.all_to_all_single

    def moved(out, given, *more):
        return plain(out.view(torch.uint8), given.view(torch.uint8), *more) if out.dim() > 1 and out.element_size() < 4 else plain(out, given, *more)
    dist.all_to_all_single = moved


def by_our_names(bench):
    """DeepEP's bench_kineto() for our kernels. Rows that are not grouped have no epilogue here."""
    def timed(call, kernel_names, **options):
        return [max(seconds, NO_KERNEL) for seconds in bench(call, tuple(KERNELS[name] for name in kernel_names), **options)]
    return timed


def rank(local_rank, tree, arguments):
    """One process."""
    os.environ["EPF_NODE"] = os.environ.get("NODES", "").split(",")[local_rank] if os.environ.get("NODES") else "0"
    module = test(tree, "test_ep")
    module.bench_kineto = by_our_names(module.bench_kineto)
    import torch
    if not torch.cuda.is_available():
        as_bytes()
    module.test_loop(local_rank, arguments.num_processes, arguments)


def main():
    tree = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "nothing"
    if not os.path.isfile(f"{tree}/tests/elastic/test_ep.py"):
        print(f"no tree of DeepEP V2 at {tree}: its test was not run")
        sys.exit(77)
    import torch
    spawn, given = torch.multiprocessing.spawn, []
    torch.multiprocessing.spawn = lambda _, args, nprocs: given.extend(args)
    test(tree, "__main__")
    torch.multiprocessing.spawn = spawn
    processes, arguments = given
    spawn(rank, args=(tree, arguments), nprocs=processes)
    print("DeepEP V2's test passed")


if __name__ == "__main__":
    main()
