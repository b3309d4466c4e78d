# SPDX-License-Identifier: Apache-2.0
"""A stand-in for PyTorch, for tests of argument checks without it: tensors have a type, a shape, a device and an address, but no values.
Anything missing here raises AttributeError.
"""
import ctypes
import itertools

__version__ = "0.0+standin"


class dtype:
    def __init__(self, name, width):
        self.name, self.itemsize = name, width

    def __repr__(self):
        return "torch." + self.name


bfloat16, float16, float32, float64 = dtype("bfloat16", 2), dtype("float16", 2), dtype("float32", 4), dtype("float64", 8)
uint8, int32, int64, bool = dtype("uint8", 1), dtype("int32", 4), dtype("int64", 8), dtype("bool", 1)
float8_e4m3fn = dtype("float8_e4m3fn", 1)


class device:
    def __init__(self, kind, index=None):
        self.type, _, number = str(kind).partition(":")
        self.index = int(number) if number else index

    def __eq__(self, other):
        return (self.type, self.index) == (other.type, other.index)

    def __hash__(self):
        return hash((self.type, self.index))

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Size(tuple):
    def numel(self):
        n = 1
        for size in self:
            n *= size
        return n


class Tensor:
    def __init__(self, sizes, dtype=float32, where="cpu", strides=None, address=None):
        self.shape, self.dtype = Size(sizes), dtype
        self.device = where if isinstance(where, device) else device(where)
        self.made_on = cuda.current_stream().cuda_stream
        self._strides = strides or self._dense()
        self._memory = None if address else ctypes.create_string_buffer(max(self.numel() * dtype.itemsize, 1) + 64)
        self._address = address or -(-ctypes.addressof(self._memory) // 64) * 64

    def _dense(self):
        return tuple(itertools.accumulate((1,) + self.shape[:0:-1], lambda a, b: a * b))[::-1]

    def dim(self):
        return len(self.shape)

    def size(self, index=None):
        return self.shape if index is None else self.shape[index]

    def numel(self):
        return self.shape.numel()

    def stride(self):
        return self._strides

    def element_size(self):
        return self.dtype.itemsize

    def is_contiguous(self):
        return self._strides == self._dense()

    def data_ptr(self):
        return self._address

    def record_stream(self, stream):
        cuda.log.append(("used on", stream.cuda_stream))

    def new_empty(self, sizes):
        return Tensor(sizes, self.dtype, self.device)

    def new_empty_strided(self, sizes, strides):
        return Tensor(sizes, self.dtype, self.device, tuple(strides))

    def _part(self, sizes, dtype, strides, offset):
        other = Tensor(sizes, dtype, self.device, strides, self._address + offset)
        other._memory = self._memory
        return other

    def resize_(self, *sizes):
        """Within the memory that it was made with."""
        assert self.shape[1:] == sizes[1:] and (self._memory is None or Size(sizes).numel() * self.dtype.itemsize + 64 <= len(self._memory)), sizes
        self.shape = Size(sizes)
        return self

    def as_strided(self, sizes, strides, offset=0):
        return self._part(sizes, self.dtype, tuple(strides), offset * self.dtype.itemsize)

    def __getitem__(self, part):
        """A slice of a tensor with one dimension."""
        return self._part((part.stop - part.start,), self.dtype, None, part.start * self.dtype.itemsize)

    def view(self, *to):
        """Other sizes, or another type where there is one dimension."""
        if isinstance(to[0], dtype):
            return self._part((self.numel() * self.dtype.itemsize // to[0].itemsize,), to[0], None, 0)
        return self._part(to, self.dtype, None, 0)


def empty(*sizes, dtype=float32, device="cpu"):
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        sizes = tuple(sizes[0])
    return Tensor(sizes, dtype, device)


def empty_strided(sizes, strides, dtype=float32, device="cpu"):
    return Tensor(sizes, dtype, device, tuple(strides))


class _Stream:
    def __init__(self, device=None, number=None):
        self.cuda_stream = number if number is not None else 100 + len(cuda.log)

    def wait_stream(self, other):
        cuda.log.append(("wait", self.cuda_stream, other.cuda_stream))

    def wait_event(self, event):
        cuda.log.append(("wait event of", self.cuda_stream, event.of))


    def record_event(self):
        return _Event(self)


class _Event:
    def __init__(self, stream):
        self.of = stream.cuda_stream
        cuda.log.append(("record", self.of))

    def wait(self):
        cuda.current_stream().wait_event(self)


class cuda:
    """A GPU that records only the order of its streams: `log` has the launches and waits. Absent unless a test sets `there`."""
    there, capturing, log = False, False, []
    Stream = _Stream
    ExternalStream = staticmethod(lambda number, device: _Stream(number=number))
    _current = [_Stream(number=1)]

    @staticmethod
    def is_available():
        return cuda.there

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def synchronize(device=None):
        cuda.log.append(("synchronize",))

    @staticmethod
    def current_stream(device=None):
        return cuda._current[-1]

    @staticmethod
    def set_stream(stream):
        cuda._current[-1] = stream

    @staticmethod
    def is_current_stream_capturing():
        return cuda.capturing

    class device:
        def __init__(self, device):
            cuda.log.append(("device", str(device)))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    class stream:
        def __init__(self, stream):
            self._stream = stream

        def __enter__(self):
            cuda._current.append(self._stream)

        def __exit__(self, *_):
            cuda._current.pop()


class version:
    hip = None
