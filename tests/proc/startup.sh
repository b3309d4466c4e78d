#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Hundreds of ranks meet over the bootstrap; all get what all gave. One that is late is named in the log, one that does not come or says another number of
# ranks is named to every other rank. Run by meson: startup.sh EP-BENCH. EPF_TEST_LONG: 2,048 ranks on 256 hosts. No verdict on time.
set -u

bench=$1
shape=(--ranks 256 --hosts 32 --processes 16)
long=${EPF_TEST_LONG:-}
[ -z "$long" ] || shape=()
unset EPF_TEST_LONG
logs=$(mktemp -d /tmp/epf-test-startup-XXXXXX)
trap 'rm -rf "$logs"' EXIT

# run NAME WORDS OPTION...: nothing is wrong, and the words are in the output
run()
{
	local log=$logs/$1 words=$2 rc
	shift 2
	"$bench" startup "${shape[@]}" "$@" >"$log" 2>&1
	rc=$?
	if [ "$rc" -ne 0 ] || ! grep -qx '# wrong: 0' "$log" || ! grep -q "$words" "$log"; then
		tail -n 20 "$log"
		echo "startup: $*: exit status $rc, or no '$words'"
		return 1
	fi
	echo "# $*: $(sed -n 's/^all_ended_s *\(.*\)/\1/p' "$log") s"
}

# beside NAME WORDS OPTION...: the same, next to the others: each waits for seconds and computes for a tenth of one. In the long form one at a time.
beside()
{
	if [ -n "$long" ]; then
		run "$@" || bad=1
	else
		run "$@" &
		begun+=($!)
	fi
}

bad=0
begun=()
run all all_ended_s || exit 1
beside late 'waiting for rank 99 of' --late 99
beside missing 'ranks failed, 0 of all do not name the cause' --missing 77
beside wrong 'ranks failed, 0 of all do not name the cause' --wrong 200
for job in "${begun[@]}"; do
	wait "$job" || bad=1
done
exit "$bad"
