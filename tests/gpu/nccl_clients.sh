#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Programs of others that use NCCL's one-sided operations, over the plug-in (docs/guides/nccl.md): DeepEP V2's own test, and NCCL EP, on two GPUs of one machine.
# First as their authors meant them, over NVLink; then as two nodes (NCCL_LSA_TEAM_SIZE=1), so that every row goes through NCCL's proxy and the plug-in, or without
# the proxy (parts *-queues). On one GPU two ranks share it under MPS: NCCL EP and the latencies.
#
#   tests/gpu/nccl_clients.sh --clients DIR [--out DIR] [--tokens N] [--sms N] [--qps N] [--limit SECONDS] [--only REGEX] [--list] [--dry]
#   tests/gpu/nccl_clients.sh --check [--out DIR]
#
# --clients  a folder made by tools/frameworks/nccl_clients.py make, carried here
# --out      where logs, the cache of compiled kernels and the table go (./gpu-results/nccl-clients)
# --tokens   of a rank in the large parts (4096); --sms, --qps: DeepEP's, 24 and 33
# --limit    upper bound of every part's time limit
# --only     parts whose name matches; --list names them all
# --dry      no GPU: checks the folder, and that each part's program can be read
# --check    no GPU, no folder: checks the verdicts on programs that end in known ways
#
# Parts: machine (what NCCL's GIN needs), v2-nvlink, v2-nvlink-gin (NVLink with GIN beside it), v2-gin-small, v2-gin, v2-direct (without the hybrid kernels),
# v2-gin-reordered, v2-gin-broken (the plug-in of a build with test hooks, signals applied at arrival: must fail), v2-gin-tcp, the same with copies in a context of
# their own (v2-own, v2-own-direct, -reordered, -broken, -tcp, -large), v1-gin, -reordered, -broken, -tcp (DeepEP's pull request 521, if the folder has it), ep-ll-nvlink, ep-ht-nvlink, ep-ll,
# ep-ht, ep-ht-own (copies in a context of their own), ep-ll-reordered, gin-latency (a put with a signal through NCCL's proxy), gin-latency-own and ring-latency (the same through our own ring); with
# kernels that write to the plug-in's queues: ep-ll-queues, -reordered, -broken, -tcp, ep-ht-queues, gin-latency-queues; gin-latency-tcp and -queues-tcp. Each has a deadline. PyTorch's NCCL is replaced by the folder's while this runs: DeepEP refuses two copies.
# Exit 0: all parts that ran did as they should; 77: no GPU, no folder, or no part ran. Speed is printed, never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
clients="" out=$PWD/gpu-results/nccl-clients tokens=4096 sms=24 qps=33 longest=600 list=0 dry=0 check=0
# shellcheck disable=SC2034 # parts.sh reads them
only=. suite="NCCL's clients over the plug-in" part_width=24
while [ $# -gt 0 ]; do
	case $1 in
	--clients) clients=$2 && shift ;;
	--out) out=$2 && shift ;;
	--tokens) tokens=$2 && shift ;;
	--sms) sms=$2 && shift ;;
	--qps) qps=$2 && shift ;;
	--limit) longest=$2 && shift ;;
	--only)
		# shellcheck disable=SC2034
		only=$2 && shift
		;;
	--list) list=1 ;;
	--dry) dry=1 ;;
	--check) check=1 ;;
	*) sed -n '/^#   tests/,/^# Exit/p' "$0" && exit 2 ;;
	esac
	shift
done
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"
# shellcheck source=tests/gpu/clients.sh
. "$root/tests/gpu/clients.sh"

# shellcheck disable=SC2034 # parts.sh sets it
gpus=0
[ "$list" = 1 ] || [ "$dry" = 1 ] || [ "$check" = 1 ] || need_gpu "--dry and --check check this script"
if [ "$list" = 0 ] && [ "$check" = 0 ] && [ ! -d "$clients/nvidia/nccl" ]; then
	echo "no programs in '$clients': tools/frameworks/nccl_clients.py make DIR --deepep TREE --build DIR makes them, on a machine with a network"
	exit 77
fi
open_table
trap 'exit 1' TERM INT
ulimit -n "$(ulimit -Hn)"

prepare()
{
	unpack_clients "$clients"
	for name in gin rma; do ln -sfn libnccl-net-epf.so "$clients/epf/libnccl-$name-epf.so"; done
	[ ! -d "$clients/epf-hooks" ] || for name in gin rma; do ln -sfn libnccl-net-epf.so "$clients/epf-hooks/libnccl-$name-epf.so"; done
	cc -shared -fPIC -O1 -o "$out/crash.so" "$root/tests/gpu/crash.c" || say "# no C compiler: crashes leave no stack"
	[ "$dry" = 1 ] || replace_nccl
}

base=() over=() node=(NCCL_LSA_TEAM_SIZE=1) queues=(NCCL_GIN_TYPE=4) hooks=()
settings()
{
	client_settings
	base=("${client_base[@]}" "LD_PRELOAD=$([ ! -f "$out/crash.so" ] || echo "$out/crash.so")" NCCL_DEBUG=INFO "NCCL_DEBUG_SUBSYS=INIT,NET,ENV,REG" NCCL_IB_DISABLE=1
		NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0 EP_BUFFER_DEBUG=1 EPF_LOG=note)
	if [ "$gpus" = 1 ]; then
		base+=(NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=45)
		with_mps on
	fi
	# NCCL's own connections stay NVLink's and sockets': what is looked at here is GIN. The network's table is the plug-in's nevertheless, as a user has it.
	over=(NCCL_NET_PLUGIN=epf NCCL_GIN_PLUGIN=epf NCCL_RMA_PLUGIN=epf NCCL_GIN_TYPE=2 NCCL_NET_GDR_LEVEL=SYS EPF_CORE_IDLE=pause EPF_SOCKET_IFNAME=lo CUDA_MODULE_LOADING=EAGER)
	hooks=("LD_LIBRARY_PATH=$(client_libraries "$at/epf-hooks")" NCCL_TEST_HOOK=1)
	over+=("LD_LIBRARY_PATH=$(client_libraries "$at/epf")")
}

# What a log says of itself, short enough to read without it: NCCL's choices, our lines, then the end.
show()
{
	grep -aE 'Assigned plugin|Skipping|Failed to|not support|WARN|NET/epf|EPF-[0-9]|devCommCreate|Symmetric memory|GIN.*type|error|Error|timeout|Assertion' "$1" |
		grep -av 'NCCL_DEBUG\|ENV/Plugin\|PROFILER\|TUNER\|Failed to get .* connection speed\|OMP_NUM' | sed 's/^.*NCCL \(INFO\|WARN\)/NCCL \1/' | awk '!seen[$0]++' | head -n "${2:-18}" | cut -c1-230 |
		sed 's/^/    /' | tee -a "$log"
	if grep -qa 'crash: C stack\|Fatal Python error' "$1"; then
		sed -n '/Fatal Python error/,/Extension modules/p;/crash: C stack/,/crash: end/p' "$1" | head -n 45 | cut -c1-180 | sed 's/^/    /' | tee -a "$log"
	fi
	tail -n "${3:-14}" "$1" | cut -c1-230 | sed 's/^/    | /' | tee -a "$log"
}

# judge NAME LIMIT right|wrong BEGAN LOG: sets verdict, and good to 1 if the part did as it should. Every other end is wrong: a part that began nothing, did without the plug-in, or was
# ended by its limit. A part *-broken must show a wrong value or rows that never came, and proves something only if *-reordered, the same with the ordering layer, was right in this run.
declare -A went=()
ran=0 good=0 verdict=""
judge()
{
	local name=$1 limit=$2 expect=$3 began=$4 into=$5 ordered=${1/broken/reordered}
	good=0
	if [ "$late" = 1 ]; then
		verdict="WRONG: not through after $limit s"
	elif [ "$expect" = right ] && [ "$rc" != 0 ]; then
		verdict="WRONG: status $rc after $took s"
	elif ! grep -qa "$began" "$into"; then
		verdict="WRONG: status $rc after $took s, and no '$began' in its log"
	elif [[ " ${settings[*]} " = *" NCCL_GIN_PLUGIN=epf "* ]] && ! grep -qa 'GIN/Plugin: Assigned plugin epf' "$into"; then
		verdict="WRONG: status $rc, and NCCL did not take the plug-in"
	elif [ "$expect" = right ]; then
		good=1 verdict="ok, $took s"
	elif [ "$rc" = 0 ]; then
		verdict="WRONG: right after $took s, though nothing is in order"
	elif grep -qa 'GPU memory stall' "$into"; then
		verdict="WRONG: its copies stalled, which says nothing of order (status $rc)"
	elif ! grep -qaE 'AssertionError|DeepEP.*timeout|WRONG' "$into"; then
		verdict="WRONG: status $rc, with no wrong value and no missing row in its log"
	elif [ -z "${went[$ordered]:-}" ]; then
		verdict="UNPROVEN: fails (status $rc), but $ordered was not right in this run"
	else
		good=1 verdict="ok, $took s: fails without order, as it must (status $rc)"
	fi
	[ "$good" = 0 ] || went[$name]=1
}

# client NAME LIMIT right|wrong BEGAN SETTING... -- COMMAND...: BEGAN is text that its log has once the exchange of data began
client()
{
	local name=$1 limit=$2 expect=$3 began=$4
	shift 4
	wanted "$name" || return 0
	settings_of "$@"
	if [ "$dry" = 1 ]; then
		result "$name" "not run: ${options[*]}"
		return 0
	fi
	if [ "$expect" = wrong ] && [ ! -e "$clients/epf-hooks/libnccl-net-epf.so" ]; then
		failed=1
		result "$name" "WRONG: the folder has no plug-in with test hooks (epf-hooks)"
		return 0
	fi
	[ "$limit" -le "$longest" ] || limit=$longest
	ran=$((ran + 1))
	bounded "$limit" "$out/$name.log" env ${base[@]+"${base[@]}"} ${settings[@]+"${settings[@]}"} "${options[@]}"
	judge "$name" "$limit" "$expect" "$began" "$out/$name.log"
	result "$name" "$verdict"
	if [ "$good" = 0 ]; then
		failed=1
		show "$out/$name.log"
	elif [ "$expect" = right ]; then
		grep -aE '^# |GB/s|^ *[0-9]+ +[0-9]|batches of additions' "$out/$name.log" | grep -av 'rank 1\|EP: *1/' | cut -c1-200 | tail -n 12 | sed 's/^/    /' | tee -a "$log"
		grep -aE 'Assigned plugin' "$out/$name.log" | sed 's/^.*NCCL INFO/    NCCL INFO/' | sort -u | head -n 3 | tee -a "$log"
	else
		grep -aE 'AssertionError|assert |DeepEP.*timeout|WRONG' "$out/$name.log" | head -n 3 | cut -c1-200 | sed 's/^/    /' | tee -a "$log"
	fi
}

# absent NAME WHAT: a part that cannot run with this folder on this machine
absent()
{
	! wanted "$1" || result "$1" "not run: there is no $2"
}

# What judge() says of programs that are known: without a GPU, without a folder.
check_verdicts()
{
	local plugin='echo GIN/Plugin: Assigned plugin epf type 2' wrong=0 bad="echo began; echo AssertionError; exit 1"
	says()
	{
		local name=$1 expect=$2 words=$3 command=$4
		settings_of "${@:5}"
		sh -c "$command" >"$out/$name.log" 2>&1
		rc=$? took=0 late=0
		[ "$rc" != 124 ] || late=1 # as bounded() says it
		judge "$name" 1 "$expect" began "$out/$name.log"
		[[ $verdict = $words* ]] && return 0
		wrong=1
		say "$name: $verdict, expected: $words"
	}
	says right right ok 'echo began'
	says right-not-begun right 'WRONG: status 0 after' 'echo nothing'
	says right-fails right 'WRONG: status 3 after' 'echo began; exit 3'
	says right-late right 'WRONG: not through' 'echo began; exit 124'
	says right-by-others right 'WRONG: status 0, and NCCL did not' 'echo began' NCCL_GIN_PLUGIN=epf
	says right-by-plugin right ok "echo began; $plugin" NCCL_GIN_PLUGIN=epf
	says a-broken wrong UNPROVEN "$bad"
	says a-reordered right ok 'echo began'
	says a-broken wrong ok "$bad"
	says a-broken wrong 'WRONG: status 1 after' 'echo AssertionError; exit 1'
	says a-broken wrong 'WRONG: right after' 'echo began'
	says a-broken wrong 'WRONG: its copies stalled' "echo GPU memory stall; $bad"
	says a-broken wrong 'WRONG: status 1, with no wrong value' 'echo began; exit 1'
	says a-broken wrong 'WRONG: not through' 'echo began; echo AssertionError; exit 124'
	[ "$wrong" = 1 ] || say "all verdicts are right"
	exit "$wrong"
}
[ "$check" = 0 ] || check_verdicts

# v2 NAME LIMIT right|wrong SETTING... -- OPTION...: DeepEP's test of ElasticBuffer
v2()
{
	local name=$1 limit=$2 expect=$3
	[ "$gpus" != 1 ] || { absent "$1" "second GPU for it, which DeepEP V2 wants" && return 0; }
	[ "$list" = 1 ] || [ -d "$clients/deepep/tests" ] || { absent "$1" "DeepEP V2 (deepep)" && return 0; }
	shift 3
	settings_of "$@"
	client "$name" "$limit" "$expect" 'Testing with' ${settings[@]+"${settings[@]}"} -- python3 "$at/deepep/tests/elastic/test_ep.py" --num-processes 2 --num-sms "$sms" --num-gpu-timeout-secs 15 \
		--num-cpu-timeout-secs 30 --num-experts 64 --test-first-only "${options[@]}"
}

# v1 NAME LIMIT right|wrong SETTING...: DeepEP's first kernels over NCCL's one-sided operations (pull request 521), its own test of low latency. With 288 experts it makes 36
# communicators, each with an engine of ours, so these sleep when idle; and 1,152 unique ids, each with a socket of NCCL's. Its kernels give up after 100 s.
v1()
{
	local began='Dispatch + combine bandwidth'
	[ "$gpus" != 1 ] || { absent "$1" "second GPU for it" && return 0; }
	[ "$list" = 1 ] || [ -d "$clients/deepep-nccl" ] || { absent "$1" "DeepEP of pull request 521 (deepep-nccl)" && return 0; }
	[ "$3" = right ] || began='Allocating buffer'
	client "$1" "$2" "$3" "$began" "PYTHONPATH=$at/deepep-nccl" DEEP_EP_BACKEND=nccl TORCH_DISTRIBUTED_BACKEND=nccl "${over[@]}" EPF_CORE_IDLE=sleep "${@:4}" -- \
		python3 "$at/deepep-nccl/tests/test_low_latency.py" --num-processes 2 --num-experts 288 --disable-nvlink
}

# nccl_ep NAME LIMIT right|wrong SETTING... -- OPTION...
nccl_ep()
{
	local name=$1 limit=$2 expect=$3
	# Additions to signals are kernels, which find no room where high throughput fills a shared GPU.
	[[ $gpus != 1 || ! $name =~ ^ep-ht(-own)?$ ]] || { absent "$name" "second GPU for it" && return 0; }
	shift 3
	settings_of "$@"
	client "$name" "$limit" "$expect" 'group made' ${settings[@]+"${settings[@]}"} -- python3 -m torch.distributed.run --standalone --nproc-per-node 2 "$root/tests/gpu/nccl_ep.py" "${options[@]}"
}

if [ "$list" = 0 ]; then
	prepare
	say "# $(hardware), $(cd "$clients" && cat deepep/REVISION 2>/dev/null)"
fi
settings
small=(--num-tokens 128 --num-qps "$qps" --skip-perf-test)
large=(--num-tokens "$tokens" --num-qps "$qps")
faulty=(EPF_EMU_ORDER=unordered EPF_EMU_REORDER=0.3)
client machine 60 right . -- python3 "$root/tests/gpu/nccl_machine.py"
v2 v2-nvlink 240 right EP_DISABLE_GIN=1 -- --num-tokens "$tokens"
v2 v2-nvlink-gin 200 right "${over[@]}" EPF_NIC=emu -- "${small[@]}"
v2 v2-gin-small 200 right "${over[@]}" "${node[@]}" EPF_NIC=emu -- "${small[@]}"
v2 v2-gin 240 right "${over[@]}" "${node[@]}" EPF_NIC=emu -- "${large[@]}"
v2 v2-direct 200 right "${over[@]}" "${node[@]}" EPF_NIC=emu -- "${small[@]}" --allow-hybrid-mode 0
# V2 loads a kernel while another waits for rows; until it is loaded, the driver blocks this process's copies (docs/guides/nccl.md). With an empty cache, each of these parts compiles a
# kernel before it loads it, and meanwhile the kernel before gets its rows.
slow()
{
	[ "$list" = 1 ] || [ "$dry" = 1 ] || mkdir -p "$out/jit-$1"
	v2 "$1" "$2" "$3" "${over[@]}" "${node[@]}" EP_JIT_CACHE_DIR="$out/jit-$1" "${@:4}" -- "${small[@]}"
}
slow v2-gin-reordered 200 right EPF_NIC=emu "${faulty[@]}" EPF_EMU_DUPLICATE=0.1
slow v2-gin-broken 200 wrong "${hooks[@]}" EPF_NIC=emu "${faulty[@]}"
slow v2-gin-tcp 200 right EPF_NIC=tcp
# Copies in a context of their own: whatever this process loads, and when, they go on. A line of each log says how many additions were late in the usual context.
own=("${over[@]}" "${node[@]}" EPF_GPU_OWN_CONTEXT=yes CUDA_MODULE_LOADING=LAZY EPF_LOG=info)
v2 v2-own 200 right "${own[@]}" EPF_NIC=emu -- "${small[@]}"
v2 v2-own-direct 200 right "${own[@]}" EPF_NIC=emu -- "${small[@]}" --allow-hybrid-mode 0
v2 v2-own-reordered 200 right "${own[@]}" EPF_NIC=emu "${faulty[@]}" EPF_EMU_DUPLICATE=0.1 -- "${small[@]}"
v2 v2-own-broken 200 wrong "${own[@]}" "${hooks[@]}" EPF_NIC=emu "${faulty[@]}" -- "${small[@]}"
v2 v2-own-tcp 200 right "${own[@]}" EPF_NIC=tcp -- "${small[@]}"
v2 v2-own-large 240 right "${own[@]}" EPF_NIC=emu -- "${large[@]}"
v1 v1-gin 280 right EPF_NIC=emu
v1 v1-gin-reordered 280 right EPF_NIC=emu "${faulty[@]}" EPF_EMU_DUPLICATE=0.1
v1 v1-gin-broken 280 wrong "${hooks[@]}" EPF_NIC=emu "${faulty[@]}"
v1 v1-gin-tcp 280 right EPF_NIC=tcp
nccl_ep ep-ll-nvlink 120 right -- --algorithm ll
nccl_ep ep-ht-nvlink 120 right -- --algorithm ht --tokens "$tokens"
nccl_ep ep-ll 120 right "${over[@]}" "${node[@]}" EPF_NIC=emu -- --algorithm ll
# NCCL EP's high throughput needs two host names to use two nodes (nccl_ep.py).
nccl_ep ep-ht 120 right "${over[@]}" "${node[@]}" EPF_NIC=emu -- --algorithm ht --tokens "$tokens" --own-host
nccl_ep ep-ht-own 120 right "${own[@]}" EPF_NIC=emu -- --algorithm ht --tokens "$tokens" --own-host
nccl_ep ep-ll-reordered 120 right "${over[@]}" "${node[@]}" EPF_NIC=emu "${faulty[@]}" EPF_EMU_DUPLICATE=0.1 -- --algorithm ll
nccl_ep ep-ll-queues 120 right "${over[@]}" "${node[@]}" "${queues[@]}" EPF_NIC=emu -- --algorithm ll
nccl_ep ep-ll-queues-reordered 120 right "${over[@]}" "${node[@]}" "${queues[@]}" EPF_NIC=emu "${faulty[@]}" EPF_EMU_DUPLICATE=0.1 -- --algorithm ll
nccl_ep ep-ll-queues-broken 120 wrong "${over[@]}" "${node[@]}" "${queues[@]}" "${hooks[@]}" EPF_NIC=emu "${faulty[@]}" -- --algorithm ll
nccl_ep ep-ll-queues-tcp 120 right "${over[@]}" "${node[@]}" "${queues[@]}" EPF_NIC=tcp -- --algorithm ll
nccl_ep ep-ht-queues 120 right "${over[@]}" "${node[@]}" "${queues[@]}" EPF_NIC=emu -- --algorithm ht --tokens "$tokens" --own-host
client gin-latency 90 right 'GIN put' "${over[@]}" "${node[@]}" EPF_NIC=emu -- "$at/gin"
client gin-latency-own 90 right 'GIN put' "${own[@]}" EPF_NIC=emu -- "$at/gin"
client gin-latency-queues 90 right 'GIN put' "${over[@]}" "${node[@]}" "${queues[@]}" EPF_NIC=emu -- "$at/gin"
client gin-latency-tcp 90 right 'GIN put' "${over[@]}" "${node[@]}" EPF_NIC=tcp -- "$at/gin"
client gin-latency-queues-tcp 90 right 'GIN put' "${over[@]}" "${node[@]}" "${queues[@]}" EPF_NIC=tcp -- "$at/gin"
client ring-latency 60 right us EPF_CORE_IDLE=pause -- "$at/epf/ep-bench" p2p --gpu --op put_add -s 8 --nic emu
if [ "$list$dry$ran" = 000 ]; then
	say "no part ran: --only '$only' matches none that the folder has (--list)"
	exit 77
fi
end
