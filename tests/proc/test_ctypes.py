#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libepf by ctypes, as the Python package will use it: one rank puts to itself, waits for its signal, reads an error.

Usage: test_ctypes.py libepf.so. Exit 0 when all holds.
"""
import ctypes
import os
import sys


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("config_file", ctypes.c_char_p),
                ("settings", ctypes.POINTER(ctypes.c_char_p)), ("progress", ctypes.c_void_p),
                ("progress_arg", ctypes.c_void_p), ("now", ctypes.c_void_p), ("now_arg", ctypes.c_void_p)]


def main(path):
    epf = ctypes.CDLL(path)
    epf.epf_last_error.restype = ctypes.c_char_p
    epf.epf_version.restype = ctypes.c_char_p
    epf.epf_signal_value.restype = ctypes.c_uint64
    u64, u32, ptr = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p

    def ok(rc):
        if rc < 0:
            sys.exit(f"{rc}: {epf.epf_last_error().decode()}")

    os.environ.update(EPF_RANK="0", EPF_WORLD_SIZE="1", EPF_RENDEZVOUS="127.0.0.1:0")
    options = Options()
    epf.epf_options_init(ctypes.byref(options))
    assert options.size == ctypes.sizeof(Options), "struct epf_options differs"
    settings = (ctypes.c_char_p * 3)(b"nic=emu", b"signals=16", None)
    options.settings = settings
    ep, mem, ring, region = ptr(), ptr(), ptr(), u32()
    ok(epf.epf_open(ctypes.byref(options), ctypes.byref(ep)))
    ok(epf.epf_memory_alloc(ep, u64(8192), ctypes.byref(mem)))
    ok(epf.epf_region_register(ep, mem, u64(8192), 3, ctypes.byref(region)))
    ok(epf.epf_ring_open(ep, None, ctypes.byref(ring)))
    ok(epf.epf_join(ep, None))
    ctypes.memmove(mem, b"token" * 100, 500)
    ok(epf.epf_put_signal(ring, u32(0), region, u64(0), region, u64(4096), u64(500), u32(3), u32(1), 0))
    ok(epf.epf_signal_wait(ep, u32(3), u64(1), u64(0)))
    assert ctypes.string_at(mem.value + 4096, 500) == b"token" * 100, "bytes differ"
    assert epf.epf_signal_value(ep, u32(3)) == 1
    rc = epf.epf_signal_wait(ep, u32(99), u64(1), u64(0))
    assert rc < 0 and b"signal 99" in epf.epf_last_error(), epf.epf_last_error()
    epf.epf_close(ep)
    print(f"libepf {epf.epf_version().decode()} by ctypes: put, signal and error text hold")


if __name__ == "__main__":
    main(sys.argv[1])
