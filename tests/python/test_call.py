#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""epf.call with the extension and without: the same bytes, the same verdicts, the same errors; and that Python's other threads run meanwhile.

Arguments: the folder of the package; the extension, or - where it was not built.
"""
import ctypes
import itertools
import os
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [sys.argv[1], os.path.join(HERE, "standin"), HERE]
import torch  # noqa: E402  the stand-in

import kit  # noqa: E402
from epf import call, lowlat, throughput  # noqa: E402

if sys.argv[2] == "-" or sys.version_info < (3, 10):
    kit.skip("the extension was not built here, or this Python is older than 3.10")
PLAIN = call.pack, call.fits, call.bind
PLAIN_ROWS, PLAIN_LAUNCHER = call.rows, call.launcher
os.environ.pop("EPF_PYTHON_EXTENSION", None)
assert call.load(sys.argv[2]), "the extension does not load"
QUICK = call.pack, call.fits, call.bind
QUICK_ROWS, QUICK_LAUNCHER = call.rows, call.launcher
assert all(a is not b for a, b in zip((*PLAIN, PLAIN_ROWS, PLAIN_LAUNCHER), (*QUICK, QUICK_ROWS, QUICK_LAUNCHER)))


def outcome(function, *arguments):
    """What a function gives, or the kind of its exception."""
    try:
        return function(*arguments)
    except Exception as error:
        return type(error)


def structures_have_the_same_bytes():
    t = torch.empty(4, dtype=torch.int32)
    for kind in (lowlat.Dispatch, lowlat.Combine, throughput.Routing, throughput.Dispatch, throughput.Combine):
        form = call.form_of(kind)
        values = [i * 77 + 1 if letter == "I" else (None, t, 1 << 63, 0)[i % 4] for i, letter in enumerate(form.decode())]
        plain, quick = (pack(form, *values) for pack in (PLAIN[0], QUICK[0]))
        assert plain == quick and len(plain) == ctypes.sizeof(kind), kind
        back = kind.from_buffer_copy(quick)
        assert back.size == ctypes.sizeof(kind) and t.data_ptr() in [int.from_bytes(quick[i:i + 8], "little") for i in range(0, len(quick) - 7, 4)]


def wrong_values_are_refused_alike():
    for values in ((1,), (1, 2, 3), (-1, 2), (1 << 32, 2), (1, 1 << 64), (1, -1), ("a", 2), (1.5, 2)):
        plain, quick = (outcome(pack, b"IQ", *values) for pack in (PLAIN[0], QUICK[0]))
        assert plain is quick and plain in (TypeError, OverflowError, AttributeError), (values, plain, quick)
    assert QUICK[0](b"IQ", (1 << 32) - 1, (1 << 64) - 1) == PLAIN[0](b"IQ", (1 << 32) - 1, (1 << 64) - 1)
    assert outcome(QUICK[0], b"Q" * 41, *range(41)) is TypeError


def tensors_fit_alike():
    here, there = torch.device("cpu"), torch.device("cuda:0")
    tensors = [torch.empty(sizes, dtype=kind, device=where) for sizes in ((), (4,), (4, 6), (6, 4), (0, 6), (4, 6, 1)) for kind in (torch.int32, torch.bfloat16)
               for where in ("cpu", "cuda:0")] + [torch.empty((6, 4)).as_strided((4, 6), (1, 4)), 5, None, "x"]
    verdicts = set()
    for t, kind, sizes, where in itertools.product(tensors, (torch.int32, torch.bfloat16), ((), (4,), (-1,), (4, 6), (-1, 6), (4, -1), (0, 6), (4, 6, 1)),
                                                   (here, there)):
        plain, quick = (fits(t, torch.Tensor, kind, sizes, where) for fits in (PLAIN[1], QUICK[1]))
        assert plain is quick, (t, kind, sizes, where, plain, quick)
        verdicts.add(quick)
    assert verdicts == {True, False}
    assert not QUICK[1](torch.empty((6, 4)).as_strided((4, 6), (1, 4)), torch.Tensor, torch.float32, (4, 6), here), "not contiguous"


def rows_look_alike():
    here, there = torch.device("cpu"), torch.device("cuda:0")
    several = [torch.empty(sizes, dtype=kind, device=where) for sizes in ((), (4,), (4, 6), (0, 6), (4, 6, 1)) for kind in (torch.int32, torch.bfloat16)
               for where in ("cpu", "cuda:0")] + [torch.empty((6, 4)).as_strided((4, 6), (1, 4)), 5, None, "x"]
    right = 0
    for t, where in itertools.product(several, (here, there)):
        plain, quick = (rows(t, torch.Tensor, where) for rows in (PLAIN_ROWS, QUICK_ROWS))
        assert plain == quick, (t, where, plain, quick)
        if quick is not None:
            right += 1
            assert quick == (t.size(0), t.size(1), t.dtype, t.element_size(), t.data_ptr()) and t.device == where
    assert right == 8 and outcome(QUICK_ROWS, torch.empty(4)) is TypeError

    class Broken(torch.Tensor):
        def data_ptr(self):
            raise BufferError
    for rows in (PLAIN_ROWS, QUICK_ROWS):
        assert outcome(rows, Broken((4, 6)), torch.Tensor, here) is BufferError


def launches_follow_their_check():
    """The check's error is returned and nothing is launched; otherwise the function gets the object, the structure and the stream."""
    kinds = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p), ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    fields, seen, t = len(call.form_of(throughput.Combine)), [], torch.empty(4)
    values = [t if i > 10 else i for i in range(fields)]
    for launcher in (PLAIN_LAUNCHER, QUICK_LAUNCHER):
        for said in (None, 0, 7, -5):
            check = None if said is None else kinds[0](lambda at, said=said: seen.append(("check", at)) or said)
            run = kinds[1](lambda at, packed, stream: seen.append((at, ctypes.string_at(packed, ctypes.sizeof(throughput.Combine)), stream)) or 3)
            result = launcher(check, run, 1 << 40, throughput.Combine)(1 << 50, *values)
            checked = [] if said is None else [("check", 1 << 40)]
            launched = [(1 << 40, PLAIN[0](call.form_of(throughput.Combine), *values), 1 << 50)]
            assert (result, seen) == ((-5, checked) if said == -5 else (3, checked + launched)), (launcher, said, result, seen)
            seen.clear()
        launch = launcher(None, run, 1, throughput.Combine)
        assert outcome(launch, None, *values[1:]) is TypeError and outcome(launch, None, *[1 << 33] * fields) is OverflowError and not seen
        assert launch(None, *[0] * fields) == 3 and seen.pop()[2] is None


def functions_get_their_arguments():
    seen = []
    one = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda o: seen.append(o) or -7)
    two = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(lambda o, s, stream: seen.append((o, s, stream)) or 3)
    address = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda o, at: seen.append((o, at)) or 4)
    three = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_void_p)(
        lambda o, s, halves, stream: seen.append((o, s, halves, stream)) or 0)
    streams = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(lambda o, first, then: seen.append((o, first, then)) or -9)
    for bind in (PLAIN[2], QUICK[2]):
        assert bind(streams)(9, 1 << 42, 1 << 43) == -9 and seen.pop() == (9, 1 << 42, 1 << 43)
        assert bind(streams)(9, 0, 1) == -9 and seen.pop() == (9, None, 1), "the default stream is 0"
        assert bind(one)(1 << 40) == -7 and bind(address)(9, 1 << 41) == 4 and bind(two)(9, b"abc", None) == 3 and bind(three)(9, b"abc", 2, 1 << 50) == 0
    assert seen == [1 << 40, (9, 1 << 41), (9, b"abc", None), (9, b"abc", 2, 1 << 50)] * 2, seen


def other_threads_run_meanwhile():
    libc = ctypes.CDLL(None)
    for bind in (PLAIN[2], QUICK[2]):
        semaphore = ctypes.create_string_buffer(64)
        libc.sem_init(semaphore, 0, 0)
        done = []
        waiting = threading.Thread(target=lambda wait=bind(libc.sem_wait), at=ctypes.addressof(semaphore), said=done: said.append(wait(ctypes.c_void_p(at).value)))
        libc.sem_wait.argtypes = [ctypes.c_void_p]
        waiting.start()
        assert not done
        libc.sem_post(semaphore)  # reached only by a thread that Python lets run
        waiting.join()
        assert done == [0]


kit.run([structures_have_the_same_bytes, wrong_values_are_refused_alike, tensors_fit_alike, rows_look_alike, launches_follow_their_check,
     functions_get_their_arguments, other_threads_run_meanwhile])
