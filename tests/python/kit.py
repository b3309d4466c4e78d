# SPDX-License-Identifier: Apache-2.0
"""Helpers of the Python package's tests: cases that print TAP, and groups of processes without PyTorch."""
import multiprocessing
import multiprocessing.forkserver
import os
import re
import runpy
import sys
import tempfile
import traceback

SKIP = 77
_method = "spawn"


def skip(reason):
    """Ends the program: skipped, with the reason as its last line."""
    print(reason)
    sys.exit(SKIP)


def python_with(module):
    """Continues in an interpreter that has a module: this one, or the system's (then it does not return). Returns whether there is one."""
    try:
        __import__(module)
        return True
    except ImportError:
        pass
    system = "/usr/bin/python3"
    if os.environ.get("TEST_RUNS_AGAIN") or not os.path.exists(system):
        return False
    os.environ["TEST_RUNS_AGAIN"] = "1"
    os.execv(system, [system] + sys.argv)


def run(cases):
    """Runs functions without arguments, one line of TAP each; exits with 0 if all held."""
    bad = 0
    for number, case in enumerate(cases, 1):
        try:
            case()
            print(f"ok {number} - {case.__name__}", flush=True)
        except Exception:  # run the remaining cases
            bad += 1
            traceback.print_exc(file=sys.stdout)
            print(f"not ok {number} - {case.__name__}", flush=True)
    print(f"1..{len(cases)}")
    if _method == "forkserver":
        multiprocessing.forkserver._forkserver._stop()  # waited for, so that the CPU time of its children counts as this program's
    sys.exit(bad != 0)


def raises(kind, pattern, function, *arguments, **named):
    """Calls a function that must raise `kind` with a text that matches the pattern; returns the exception."""
    try:
        function(*arguments, **named)
    except kind as error:
        assert re.search(pattern, str(error)), f"text is {str(error)!r}, without {pattern!r}"
        assert "\n" not in str(error), f"more than one line: {error}"
        return error
    raise AssertionError(f"no {kind.__name__} with {pattern!r}")


class PipeGroup:
    """A group of processes over pipes through rank 0. Like epf.meet.Group, without importing it."""

    def __init__(self, rank, size, pipes):
        self.rank, self.size, self._pipes = rank, size, pipes

    def all_gather(self, mine):
        if self.rank:
            self._pipes[self.rank][1].send(mine)
            return self._pipes[self.rank][1].recv()
        everybody = [mine] + [self._pipes[r][0].recv() for r in range(1, self.size)]
        for r in range(1, self.size):
            self._pipes[r][0].send(everybody)
        return everybody


def _child(function, rank, size, pipes, results, arguments):
    try:
        results.put((rank, None, function(rank, size, pipes, *arguments)))
    except BaseException:
        results.put((rank, traceback.format_exc(), None))


def preload(*modules):
    """Starts children with modules already imported: they are forked from a server that only imported them."""
    global _method
    _method = "forkserver"
    multiprocessing.get_context(_method).set_forkserver_preload(list(modules))


def processes(size, function, *arguments, timeout=120, gone=()):
    """Runs function(rank, size, pipes, ...) in separate processes; returns their results by rank. Ranks `gone` return nothing."""
    context = multiprocessing.get_context(_method)
    pipes = [context.Pipe() for _ in range(size)]
    results = context.Queue()
    children = [context.Process(target=_child, args=(function, r, size, pipes, results, arguments)) for r in range(size)]
    for child in children:
        child.start()
    try:
        got = [results.get(timeout=timeout) for _ in range(size - len(gone))]
    finally:
        for child in children:
            child.join(10)
            if child.is_alive():
                child.kill()
                child.join()
    for rank, error, _ in got:
        assert error is None, f"rank {rank}:\n{error}"
    return {rank: value for rank, _, value in got} if gone else [value for _, _, value in sorted(got, key=lambda one: one[0])]


def _program(path, arguments, environment, out):
    with open(out, "w", encoding="utf-8") as f:
        os.dup2(f.fileno(), 1)
        os.dup2(f.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [path, *arguments]
    sys.path[:0] = [folder for folder in environment.get("PYTHONPATH", "").split(":") if folder]
    runpy.run_path(path, run_name="__main__")


def start(path, arguments, environment, out):
    """Starts a Python program in a process that has the preloaded module, which an interpreter would have to import; its output goes to a file. Returns
    the process. The caller is imported there: it may run its cases only as __main__."""
    child = multiprocessing.get_context(_method).Process(target=_program, args=(path, arguments, environment, out))
    child.start()
    return child


def program(path, arguments, environment, timeout):
    """Runs a Python program as start() does; prints its output. Returns its exit status, negative for a signal."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        child = start(path, arguments, environment, out)
        child.join(timeout)
        if child.is_alive():
            child.kill()
            child.join()
        with open(out, encoding="utf-8") as f:
            print(f.read(), end="")
        return child.exitcode
