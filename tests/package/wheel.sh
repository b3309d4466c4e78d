#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The wheels of tools/package/wheel in empty virtual environments, without network: they install, they are complete, and a job runs.
#
#   wheel.sh WHEELS-DIR WORK-DIR   prints one line a case, "ok NAME" or "FAIL NAME: why"
#
# Cases are called by their names.
# shellcheck disable=SC2317

set -uo pipefail
export LC_ALL=C
unset PYTHONPATH EPF_LIBRARY EPF_LL_LIBRARY LD_LIBRARY_PATH

WHEELS=$(cd "$1" && pwd)
rm -rf "$2/plain" "$2/dropin"
mkdir -p "$2" && cd "$2" || exit 1
FAILED=0
python=/usr/bin/python3
[ -x "$python" ] || python=python3

# case_of NAME COMMAND...
case_of()
{
	local name=$1
	shift
	if "$@" >case.log 2>&1; then
		printf 'ok %s\n' "$name"
	else
		FAILED=1
		printf 'FAIL %s: %s\n' "$name" "$(tail -n 3 case.log | tr '\n' ' ')"
	fi
}

# environment NAME REQUIREMENT
environment()
{
	"$python" -m venv "$1" && "$1/bin/pip" install -q --disable-pip-version-check --no-index --find-links "$WHEELS" "$2"
}

installs()
{
	environment plain ep-fabric && plain/bin/python -c 'import epf; print(epf.version()); epf.lowlat.load(); assert epf.call.pack is not epf.call._pack, "no extension"'
}

# Whoever has DeepEP keeps it.
hides_nothing()
{
	! plain/bin/python -c 'import deep_ep' 2>&1 || { echo "deep_ep is there unasked" && return 1; }
	environment dropin 'ep-fabric[deep_ep]' && dropin/bin/python -c 'import deep_ep, deep_ep.utils; deep_ep.Buffer'
}

# Everything but glibc comes from the wheel: the system of whoever installs it need not have it.
is_complete()
{
	local folder file outside
	folder=$(plain/bin/python -c 'from epf._installed import LIBDIR; print(LIBDIR)') || return
	for file in "$folder"/ep-* "$folder"/libepf* "$folder"/*/lib*; do
		outside=$(ldd "$file" | grep '=>' | grep -v -e "=> $folder/" -e "=> $folder/n[a-z]*/../lib" -e '^[[:space:]]*lib\(c\|m\|dl\|rt\|pthread\|stdc++\|gcc_s\)\.so')
		[ -z "$outside" ] || { echo "$(basename "$file") takes from the system: $outside" && return 1; }
	done
}

# The tag promises a version of glibc: no file may need a newer one.
tag_is_true()
{
	local wheel promised newest
	wheel=$(basename "$WHEELS"/ep_fabric-*.whl)
	promised=$(sed -n 's/.*-manylinux_2_\([0-9]*\)_.*/\1/p' <<<"$wheel")
	newest=$(find plain/lib/python*/site-packages/epf/lib -type f ! -name '*.copyright' -exec objdump -T {} + |
		sed -n 's/.*GLIBC_2\.\([0-9]*\).*/\1/p' | sort -n | tail -n 1)
	if [ -z "$promised" ] || [ "$promised" -lt "${newest:-99}" ]; then
		echo "$wheel, and glibc 2.$newest is needed"
		return 1
	fi
}

programs_speak()
{
	plain/bin/ep-fabric version && plain/bin/ep-fabric config --changed && plain/bin/ep-top --help
}

# Each back end of ep-fabric exec, for programs of this environment; the drop-in by it alone, also where another deep_ep is installed.
back_ends_serve()
{
	local folder site exec=(plain/bin/ep-fabric exec)
	folder=$(plain/bin/python -c 'from epf._installed import LIBDIR; print(LIBDIR)') && site=${folder%/epf/lib} || return
	mkdir "$site/deep_ep" && touch "$site/deep_ep/__init__.py"
	"${exec[@]}" --backend=deep_ep -- plain/bin/python -c 'import deep_ep; assert deep_ep.__version__.endswith("+epf"); deep_ep.Buffer'
	local rc=$?
	rm -r "$site/deep_ep"
	[ "$rc" = 0 ] && "${exec[@]}" --backend=nvshmem --dry-run -- true &&
		"${exec[@]}" --backend=nccl -- plain/bin/python -c 'import ctypes, os
for kind, table in (("NET", "ncclNetPlugin_v11"), ("GIN", "ncclGinPlugin_v13"), ("RMA", "ncclRmaPlugin_v14")):
    getattr(ctypes.CDLL(os.environ[f"NCCL_{kind}_PLUGIN"]), table)
assert "LD_LIBRARY_PATH" not in os.environ'
}

# What NIXL_PLUGIN_DIR names: nothing but the plug-in, which loads; and a link to it beside NIXL's own plug-ins finds its libraries.
nixl_plugin_loads()
{
	local folder site outside
	folder=$(plain/bin/python -c 'from epf._installed import LIBDIR; print(LIBDIR)') && site=${folder%/epf/lib} || return
	plain/bin/python -c 'import ctypes, os, sys
assert os.listdir(sys.argv[1]) == ["libplugin_EPF.so"], os.listdir(sys.argv[1])
ctypes.CDLL(sys.argv[1] + "/libplugin_EPF.so").nixl_plugin_init' "$folder/nixl" || return
	mkdir -p "$site/.nixl_cu12.mesonpy.libs/plugins" && ln -s "$folder/nixl/libplugin_EPF.so" "$site/.nixl_cu12.mesonpy.libs/plugins" || return
	outside=$(ldd "$site/.nixl_cu12.mesonpy.libs/plugins/libplugin_EPF.so" | grep -E 'lib(inih|sodium|zstd)' | grep -v '/epf/lib/')
	[ -z "$outside" ] || { echo "by a link it takes from the system: $outside" && return 1; }
}

a_job_runs()
{
	plain/bin/ep-bench moe --both --ranks 4 --nodes 2 --tokens 16 --hidden 1024 --experts 32 --mode ll --set "runtime-dir=$PWD" --quiet
}

two_python_ranks_meet()
{
	cat >ranks.py <<-'TEXT'
		import multiprocessing, sys
		import epf, epf.meet

		class Pair(epf.meet.Group):
		    """Two ranks and a pipe."""
		    def __init__(self, rank, end):
		        self.rank, self.size, self.end = rank, 2, end
		    def all_gather(self, value):
		        self.end.send(value)
		        other = self.end.recv()
		        return [value, other] if self.rank == 0 else [other, value]

		def rank(number, end):
		    with epf.Fabric(Pair(number, end)) as fabric:
		        fabric.barrier()

		if __name__ == "__main__":
		    ends = multiprocessing.Pipe()
		    ranks = [multiprocessing.Process(target=rank, args=(r, ends[r])) for r in range(2)]
		    [r.start() for r in ranks], [r.join() for r in ranks]
		    sys.exit(any(r.exitcode for r in ranks))
	TEXT
	timeout $((60 * ${LIMIT_TIMES:-1})) plain/bin/python ranks.py
}

case_of "wheel installs" installs
case_of "wheel complete" is_complete
case_of "wheel tag" tag_is_true
case_of "wheel programs" programs_speak
case_of "wheel back ends" back_ends_serve
case_of "wheel NIXL plug-in" nixl_plugin_loads
case_of "wheel job" a_job_runs
case_of "wheel python ranks" two_python_ranks_meet
case_of "wheel drop-in" hides_nothing
exit "$FAILED"
