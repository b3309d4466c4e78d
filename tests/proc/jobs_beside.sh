#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Two and four real jobs on the same two daemons: a decode job alone, beside bulk jobs, and beside them without fairness. Run by meson: jobs_beside.sh
# EP-BENCH EP-FABRIC. ep-bench prints "wrong: 0" and exits with 0 only if every job ran to its end and every byte that it checked was right. Its times are
# shown and not judged.
set -u

bench=$1
fabric=$2
limit=$((300 * ${LIMIT_TIMES:-1})) # only a job that hangs meets it
log=$(mktemp /tmp/epf-test-jobs-XXXXXX)
trap 'rm -f "$log"' EXIT

for others in 1 3; do
	timeout "$limit" "$bench" jobs --fabric-program "$fabric" --timeout-s "$((limit - 10))" --repeat 1 --rounds 50 --tokens 4 --bulk-jobs "$others" >"$log" 2>&1
	rc=$?
	if [ "$rc" -ne 0 ] || ! grep -qx '# wrong: 0' "$log"; then
		tail -n 20 "$log"
		echo "jobs_beside: beside $others: exit status $rc (124: not within $limit s)"
		exit 1
	fi
	# Each bulk job moved bytes, with fairness and without.
	if [ "$(awk '/beside bulk/ && $NF > 0' "$log" | wc -l)" != 2 ]; then
		cat "$log"
		echo "jobs_beside: beside $others: the bulk jobs moved nothing"
		exit 1
	fi
	sed "s/^/# /" "$log"
done
