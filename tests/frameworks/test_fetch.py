#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/frameworks/fetch.py without a network: what it clears of device code, and archives in parts. Usage: test_fetch.py"""
import contextlib
import io
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [f"{HERE}/../python", f"{HERE}/../../tools/frameworks"]

import fetch  # noqa: E402
from kit import run  # noqa: E402

MEMBER_HEADER = 64


def member(kind, architecture, text):
    header = fetch.MEMBER.pack(kind, 0x101, MEMBER_HEADER, len(text), architecture)
    return header + bytes(MEMBER_HEADER - len(header)) + text


def archive(*members):
    body = b"".join(members)
    return fetch.FATBIN.pack(fetch.FATBIN_MAGIC, 1, fetch.FATBIN.size, len(body)) + body


def other_architectures_are_cleared():
    """Three archives with padding between them: with a binary for Hopper, with PTX only, with neither."""
    before = [archive(member(fetch.CUBIN, 80, b"ampere.."), member(fetch.CUBIN, 90, b"hopper.."), member(fetch.PTX, 90, b"ptx....."), member(fetch.CUBIN, 100, b"blackwel")),
              bytes(24), archive(member(fetch.CUBIN, 80, b"ampere.."), member(fetch.PTX, 80, b"oldptx..")), archive(member(fetch.CUBIN, 120, b"newer..."))]
    code = bytearray(b"".join(before))
    size = len(code)
    assert fetch.prune(code) == (2, 5)
    assert len(code) == size
    for text, kept in ((b"hopper..", True), (b"oldptx..", True), (b"ampere..", False), (b"ptx.....", False), (b"blackwel", False), (b"newer...", False)):
        assert (text in code) == kept, text
    expected = b"".join(before)
    for gone in (b"ampere..", b"ptx.....", b"blackwel", b"newer..."):
        expected = expected.replace(gone, bytes(len(gone)))
    assert bytes(code) == expected, "a header has changed"


def parts_give_the_folder_back():
    """Packs a folder into parts of a few bytes, puts them together elsewhere; a part left out is found."""
    with tempfile.TemporaryDirectory() as at, contextlib.redirect_stdout(io.StringIO()):
        folder, again = f"{at}/some", f"{at}/again"
        os.makedirs(f"{folder}/inner")
        for name in ("inner/a", "b"):
            with open(f"{folder}/{name}", "wb") as f:
                f.write(os.urandom(3000))
        with open(f"{folder}/{fetch.MARK}", "w", encoding="ascii"):
            pass
        fetch.write_manifest("vllm", folder)
        fetch.PART_BYTES = 2500
        fetch.pack(folder)
        parts = sorted(name for name in os.listdir(at) if name.startswith("some."))
        assert parts == ["some.1", "some.2", "some.3"], parts
        fetch.put_together(again, [f"{at}/{part}" for part in parts])
        assert not fetch.verify(again)
        with open(f"{again}/b", "ab") as f:
            f.write(b"x")
        assert fetch.verify(again)
        try:
            fetch.put_together(f"{at}/third", [f"{at}/{part}" for part in parts[:2]])
        except (EOFError, OSError, fetch.tarfile.ReadError):
            return
        raise AssertionError("a missing part was not noticed")


if __name__ == "__main__":
    run([other_architectures_are_cleared, parts_give_the_folder_back])
