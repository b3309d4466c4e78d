#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# ep-bench p2p --gpu --stages: the numbers of the three threads are consistent with each other and with the options; invalid options are
# refused. Run by meson: p2p_stages.sh EP-BENCH. Times are printed and not judged.
set -u

bench=$1
n=20000
dir=$(mktemp -d /tmp/epf-test-stages-XXXXXX)
trap 'rm -rf "$dir"' EXIT
export EPF_STATS_DIR=$dir

fail()
{
	echo "p2p_stages: $*"
	tail -n 40 "$dir"/out
	exit 1
}

# refused WORDS OPTION...
refused()
{
	local words=$1
	shift
	timeout $((60 * ${LIMIT_TIMES:-1})) "$bench" p2p "$@" >"$dir/out" 2>&1
	[ $? = 2 ] || fail "$*: not refused"
	grep -q -e "$words" "$dir/out" || fail "$*: does not say '$words'"
}

common=(--gpu --gpu-backend fake --op put --test bw -s 7168 -n "$n" --warps 2 --gpu-copy kernel)
timeout $((100 * ${LIMIT_TIMES:-1})) "$bench" p2p "${common[@]}" --stages --pretend 26,4000 --json >"$dir/out" 2>&1 || fail "exit status $?"
cat "$dir/out"
python3 - "$dir/out" "$n" <<'EOF' || fail "the numbers do not fit"
import json
import sys

row = json.load(open(sys.argv[1]))["sizes"][0]
n = int(sys.argv[2])
sender, receiver = row["nic_0"], row["nic_1"]
assert receiver["copies"] == n, receiver
assert sender["copies"] == 0, sender
assert n / 64 <= receiver["jobs"] <= n, receiver
assert receiver["jobs"] <= sender["packets"] <= receiver["jobs"] + 20, (sender, receiver)
assert 0 < receiver["batches"] <= receiver["jobs"], receiver
assert 4000 * receiver["batches"] <= receiver["copier_submit"] * n * 1.01, receiver
# Times of the engines are samples: a short run on a busy machine may have none.
assert sender["fill"] >= 0 and receiver["land"] >= 0, row
# The device needs 26 ns per copy, so nothing is faster than that.
assert receiver["wall"] >= 26, receiver
EOF
refused 'needs --gpu --test bw' --stages
refused 'needs --gpu --test bw' --gpu --gpu-backend fake --test lat --stages
refused 'needs --gpu --gpu-backend fake' --gpu --test bw --pretend 26
refused 'must be COPY_NS' "${common[@]}" --pretend 26,
exit 0
