#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Hundreds of ranks meet over the bootstrap; all get what all gave. One that is late is named in the log, one that does not come or says another number of
# ranks is named to every other rank. Run by meson: startup.sh EP-BENCH. EPF_TEST_LONG: 2,048 ranks on 256 hosts. No verdict on time.
set -u

bench=$1
shape=(--ranks 256 --hosts 32 --processes 16)
[ -z "${EPF_TEST_LONG:-}" ] || shape=()
unset EPF_TEST_LONG
log=$(mktemp /tmp/epf-test-startup-XXXXXX)
trap 'rm -f "$log"' EXIT

# run WORDS OPTION...: nothing is wrong, and the words are in the output
run()
{
	local words=$1 rc
	shift
	"$bench" startup "${shape[@]}" "$@" >"$log" 2>&1
	rc=$?
	if [ "$rc" -ne 0 ] || ! grep -qx '# wrong: 0' "$log" || ! grep -q "$words" "$log"; then
		tail -n 20 "$log"
		echo "startup: $*: exit status $rc, or no '$words'"
		exit 1
	fi
	echo "# $*: $(sed -n 's/^all_ended_s *\(.*\)/\1/p' "$log") s"
}

run all_ended_s
run 'waiting for rank 99 of' --late 99
run 'ranks failed, 0 of all do not name the cause' --missing 77
run 'ranks failed, 0 of all do not name the cause' --wrong 200
