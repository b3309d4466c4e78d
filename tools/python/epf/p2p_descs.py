# SPDX-License-Identifier: Apache-2.0
"""UCCL's descriptors for epf.p2p.Endpoint: memory that is registered and advertised in one call, and transfers between two lists of descriptors.

A descriptor of this process has a region; one that a peer has sent has an address, a length and the key of its region. Both may be narrowed: a
transfer may begin anywhere in a region, and moves as many bytes as the local descriptor has.
"""
from __future__ import annotations

import struct
from typing import Any, Dict, List, Sequence, Tuple

NO_REGION = 2**64 - 1
_WORDS = struct.Struct("<16I")  # a key as UCCL's list of numbers
_COUNT, _ONE = struct.Struct("<Q"), struct.Struct("<QQ64s")


class XferDesc:
    """Memory, here or at a peer. addr, size; mr_id: its region here, 2**64 - 1 for none; rkeys: the key that peers need, as numbers; lkeys: none here."""

    def __init__(self) -> None:
        self.addr, self.size, self.mr_id = 0, 0, NO_REGION
        self.lkeys: List[int] = []
        self.rkeys: List[int] = []

    def __repr__(self) -> str:
        return f"<XferDesc addr={self.addr} size={self.size} mr_id={self.mr_id}>"


class Descriptors:
    """A part of Endpoint, which has the rest."""

    last_error: str
    _regions: Dict[int, Tuple[int, int, Any]]
    reg: Any
    dereg: Any
    advertise: Any
    _later: Any

    def register_memory(self, tensor_list: Sequence[Any]) -> List[XferDesc]:
        """Descriptors of tensors, or of what else memory_of() knows, for peers to read and write until deregister_memory(). As of UCCL, memory that cannot
        be registered gets a descriptor without a region, with which transfer() raises RuntimeError; `last_error` says why."""
        got = []
        for tensor in tensor_list:
            desc = XferDesc()
            ok, mr = self.reg(tensor)
            if ok:
                desc.addr, desc.size, _ = self._regions[mr]
                ok, key = self.advertise(mr, desc.addr, desc.size)
                if ok:
                    desc.mr_id, desc.rkeys = mr, list(_WORDS.unpack(key))
                else:
                    self.dereg(mr)
            got.append(desc)
        return got

    def deregister_memory(self, desc_list: Sequence[XferDesc]) -> None:
        """Peers no longer touch the memory when it returns. Raises RuntimeError where one still does: then the memory must stay."""
        for desc in desc_list:
            if desc.mr_id == NO_REGION:
                continue
            if not self.dereg(desc.mr_id):
                raise RuntimeError(self.last_error)
            desc.mr_id = NO_REGION

    def get_serialized_descs(self, desc_list: Sequence[XferDesc]) -> bytes:
        """The bytes that a peer gives to deserialize_descs(). Whoever has them can use the memory over a connection."""
        text = [_COUNT.pack(len(desc_list))]
        for desc in desc_list:
            key = _WORDS.pack(*desc.rkeys) if desc.rkeys else bytes(_WORDS.size)
            text.append(_ONE.pack(desc.addr, desc.size, key))
        return b"".join(text)

    def deserialize_descs(self, serialized_bytes: bytes) -> List[XferDesc]:
        """The descriptors of a peer. Raises RuntimeError for other bytes."""
        if not serialized_bytes:
            return []
        count, = _COUNT.unpack_from(serialized_bytes) if len(serialized_bytes) >= _COUNT.size else (-1,)
        if len(serialized_bytes) != _COUNT.size + count * _ONE.size:
            raise RuntimeError(f"{len(serialized_bytes)} bytes are no descriptors: pass what get_serialized_descs() of this version has returned")
        got = []
        for addr, size, key in _ONE.iter_unpack(serialized_bytes[_COUNT.size:]):
            desc = XferDesc()
            desc.addr, desc.size = addr, size
            desc.rkeys = list(_WORDS.unpack(key)) if any(key) else []
            got.append(desc)
        return got

    def transfer(self, conn_id: int, op_name: str, local_desc_list: Sequence[XferDesc], remote_desc_list: Sequence[XferDesc]) -> Tuple[bool, int]:
        """Begins one transfer: op_name "write" or "read", each local descriptor with the remote one at its place. (ok, number for poll_async)."""
        if len(local_desc_list) != len(remote_desc_list):
            raise RuntimeError("local and remote descriptors must have the same size")
        if op_name not in ("write", "read"):
            raise RuntimeError(f"op_name {op_name!r} is neither write nor read")
        for i, (here, there) in enumerate(zip(local_desc_list, remote_desc_list)):
            if here.mr_id == NO_REGION or not there.rkeys:
                raise RuntimeError(f"descriptor {i} of the {'local' if here.mr_id == NO_REGION else 'remote'} list has no registered memory")
            if here.size > there.size:
                raise RuntimeError(f"descriptor {i}: {here.size} bytes here, {there.size} at the peer")
        return self._later(1 if op_name == "write" else 2, conn_id, [d.mr_id for d in local_desc_list], [d.addr for d in local_desc_list],
                           [d.size for d in local_desc_list], [_WORDS.pack(*d.rkeys) for d in remote_desc_list], None, [d.addr for d in remote_desc_list])
