#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# ep-bench's commands for two hosts and for verbs, as far as they need no RDMA device: p2p --server and p2p HOST over loopback and the
# software NIC, a stranger between them, invalid options, and empty, the comparison on a provider without function. Run by meson:
# p2p_hosts.sh EP-BENCH EMPTY-PROVIDER-DIR|none. Rates are printed and not judged.
set -u

bench=$1
provider=$2
limit=$((120 * ${LIMIT_TIMES:-1}))
dir=$(mktemp -d /tmp/epf-test-p2p-XXXXXX)
trap 'rm -rf "$dir"' EXIT
export EPF_STATS_DIR=$dir EPF_SECRET=p2p-hosts-p2p-hosts
unset EPF_SECRET_FILE EPF_SECRET_FD EPF_SERVICE

fail()
{
	echo "p2p_hosts: $*"
	tail -n 20 "$dir"/*.out
	exit 1
}

free_port()
{
	"$(dirname "$0")/../free_port.py"
}

# hosts OPTION...: both ends exit with 0 and report nothing wrong
hosts()
{
	local port server
	port=$(free_port)
	timeout "$limit" "$bench" p2p --server -p "$port" --timeout-s "$limit" "${server_options[@]}" >"$dir/server.out" 2>&1 &
	server=$!
	timeout "$limit" "$bench" p2p 127.0.0.1 -p "$port" "$@" >"$dir/client.out" 2>&1 || fail "client $*: exit status $?"
	wait "$server" || fail "server of $*: exit status $?"
	grep -qx '# wrong: 0' "$dir/client.out" || fail "client $*: no '# wrong: 0'"
	grep -qx '# wrong: 0' "$dir/server.out" || fail "server of $*: no '# wrong: 0'"
}

server_options=()

# refused STATUS PATTERN COMMAND...
refused()
{
	local want=$1 pattern=$2 rc
	shift 2
	timeout "$limit" "$bench" "$@" >"$dir/refused.out" 2>&1
	rc=$?
	[ "$rc" = "$want" ] || fail "$*: exit status $rc, want $want"
	grep -qE -- "$pattern" "$dir/refused.out" || fail "$*: does not say $pattern"
}

hosts -s 64 -n 50
grep -qE '^ 64 +50 ' "$dir/client.out" || fail "no row of 64 bytes and 50 transfers"
hosts -s 4096 -n 100 --test bw --op put -b
hosts -s 512 -n 20 --op get
echo "# two hosts: latency, both directions at once, get"
server_options=(--nic tcp --gpu --gpu-backend fake)
hosts --nic tcp --gpu --gpu-backend fake -s 7168 -n 50 --op put --test bw --warps 4
port=$(free_port)
timeout "$limit" "$bench" p2p --server -p "$port" >"$dir/server.out" 2>&1 &
server=$!
refused 1 '' p2p 127.0.0.1 -p "$port" --gpu --gpu-backend fake -s 64 -n 5
wait "$server" && fail "a server without --gpu serves a client with it"
grep -q 'given at one end' "$dir/server.out" || fail "the server does not say that --gpu is not given at both ends"
server_options=()
echo "# two hosts: GPU memory"

# With progress=caller, the rank that only receives must step its engine as well, or nothing arrives.
for form in "--same-node" "--same-node --op put" "--op get" "--same-node --test bw -b"; do
	# shellcheck disable=SC2086
	timeout "$limit" "$bench" p2p $form --set progress=caller -s 64 -n 50 >"$dir/caller.out" 2>&1 || fail "p2p $form, progress=caller: exit status $?"
	grep -qx '# wrong: 0' "$dir/caller.out" || fail "p2p $form, progress=caller: no '# wrong: 0'"
done
echo "# progress=caller: latency, reads, both directions at once"

# A peer without the secret is refused; the server and the client go on.
port=$(free_port)
timeout "$limit" "$bench" p2p --server -p "$port" --timeout-s "$limit" >"$dir/server.out" 2>&1 &
server=$!
EPF_SECRET=somebody-else-somebody-else refused 1 'EPF-209' p2p 127.0.0.1 -p "$port" --timeout-s 20
timeout "$limit" "$bench" rawverbs 127.0.0.1 -p "$port" --timeout-s 20 >"$dir/refused.out" 2>&1 && fail "rawverbs met p2p"
wait "$server" && fail "p2p took rawverbs for its client"
grep -q 'another release, or runs another command' "$dir/server.out" || fail "the server does not say what came"
refused 1 'EPF-208' p2p 127.0.0.1 -p "$(free_port)" --timeout-s 1
EPF_SECRET='' refused 1 'EPF-205' p2p 10.9.8.7 --timeout-s 1

refused 2 '^Usage: ep-bench COMMAND'
refused 2 'nothing is not a command: see ep-bench --help' nothing
refused 2 'progress=caller, must be progress=thread with --gpu' p2p --gpu --gpu-backend fake --set progress=caller
refused 2 'null moves nothing' p2p --nic null
refused 2 'one of the two waits' p2p --server 127.0.0.1
refused 2 'one host too many' p2p a b
refused 2 'must not be with --server' p2p --server --json
refused 2 'must not be with --service' p2p --against rawverbs --all
refused 2 '-s is 2097152, must be at most 1048576 with --against' p2p --against rawverbs -s 2097152
refused 2 '-l is 32, must not be above -t, which is 16' p2p --against rawverbs -l 32 -t 16
refused 2 '-d is a,b,c, must be DEV or DEV,DEV' p2p -d a,b,c
refused 2 '-Q is 24, must be a multiple of -l' rawverbs -l 16 -Q 24
refused 2 '-m is 1000, must be 256' rawverbs -m 1000
refused 1 'device|verbs' rawverbs -d no_such_device
refused 2 '-D is given, must not be together with -n' rawverbs -D 1 -n 10
echo "# strangers and invalid options: refused with a reason"

if [ "$provider" != none ]; then
	"$bench" empty --provider "$provider" --runs 3 --duration-ms 50 >"$dir/empty.out" 2>&1 || fail "empty: exit status $?"
	grep -qx '# wrong: 0' "$dir/empty.out" || fail "empty: no '# wrong: 0'"
	sed -n 's/^ \(ibv_[a-z_*]*\) .*/\1/p' "$dir/empty.out" | tr '\n' ' ' | grep -q 'ibv_wr_\* ibv_post_send' || fail "empty: rows are missing"
	# On a busy machine a put may once appear cheaper than a bare post.
	for turn in 1 2 3 4 5 6 7 8 9 10; do
		timeout "$limit" "$bench" empty --provider "$provider" --runs 1 --duration-ms 20 --gate 1 >"$dir/refused.out" 2>&1 || break
	done
	[ "$turn" != 10 ] || fail "empty --gate 1: never refused"
	grep -q 'more than --gate 1' "$dir/refused.out" || fail "empty --gate 1: does not say that it is more"
	refused 1 'build it \(ninja\), or say where it is' empty --provider "$dir"
	awk '/^ ibv_/ { printf "# empty: %s adds %s ns a write to %s\n", $1, $4, $2 }' "$dir/empty.out"
fi
exit 0
