"""For trying programs of several GPUs on one: device n becomes n modulo the GPUs there are, and process groups are gloo's, because NCCL refuses two
ranks on one GPU. Only with ONE_GPU=1. Programs and modules under test stay as they are."""
import os
if os.environ.get("ONE_GPU") == "1":
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        torch = None
    if torch is not None:
        _set, _init = torch.cuda.set_device, dist.init_process_group

        def set_device(device):
            index = device if isinstance(device, int) else torch.device(device).index or 0
            _set(index % max(1, torch.cuda.device_count()))

        def init_process_group(backend=None, *args, **kw):
            kw.pop("device_id", None)
            if backend in (None, "nccl"):
                backend = "gloo"
            return _init(backend, *args, **kw)
        import inspect
        init_process_group.__signature__ = inspect.Signature([p for n, p in inspect.signature(_init).parameters.items() if n != "device_id"])
        torch.cuda.set_device = set_device

        def all_gather_into_tensor(output, input, group=None, async_op=False):
            parts = [torch.empty_like(input) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, input.contiguous(), group=group)
            output.copy_(torch.stack(parts).view(output.shape) if output.numel() else output)
        dist.all_gather_into_tensor = all_gather_into_tensor
        dist.init_process_group = init_process_group
