# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# The stage rxe of tests/stages.sh, which sources this file and has its helpers.

HOOKS_OPTIONS=(-Dwerror=true -Doptimization=1 -Ddebug=false -Dcuda=disabled -Dtest_hooks=true)

# Jobs over soft-RoCE in QEMU guests (tests/rxe/jobs.sh). All groups share one boot, which takes 8 s; in the long form each group, which may take hours,
# has its own, so that its failure does not end the others. The group `two` has two separate guests.
stage_rxe()
{
	local kinds=(rxe) start group groups hooks='' want=$LOGS/rxe.expected
	start=$(now_ms)
	prepare_test_build && compile_quietly build-test bench/ep-bench tools/ep-fabric \
		tests/unit/test_{nic,nic_limits,nic_fail,verbs_device,p2p_nic} tests/proc/test_{nccl,gin} tools/nccl/libnccl-net-epf.so tests/rxe/rxe_{again,faults,soak,two} || return
	[ "$LONG" != yes ] || kinds+=(rxe-long)
	for group in "${kinds[@]}"; do expected "$group"; done >"$want"
	groups=$(rxe_groups "$want") || return
	if [[ ,$groups, == *,broken,* ]]; then
		hooks=$BUILD_ROOT/build-hooks
		prepare build-hooks gcc "${HOOKS_OPTIONS[@]}" && compile_quietly build-hooks tests/rxe/rxe_soak || return
	fi
	check "rxe guest" "$ROOT/tests/rxe/guest.sh" --dir "$BUILD_ROOT/rxe" --prepare
	[[ ,$groups, != *,speed,* ]] || "$ROOT/tests/rxe/perftest.sh" "$BUILD_ROOT/rxe" || true # reported by the job that needs it
	if [ "$LONG" != yes ]; then
		rxe_run 4000 "" "$(sed 's/,\?\<two\>//; s/^,//' <<<"$groups")" "$want"
		[[ ,$groups, != *,two,* ]] || rxe_run 1200 "" two "$want"
	else
		for group in ${groups//,/ }; do
			rxe_run "$(rxe_limit "$group")" "$hooks" "$group" "$want"
		done
	fi
	printf '    the whole stage: %s; under 540 s on two CPUs without other work\n' "$(seconds "$start")"
}

# rxe_groups WANT: the groups in a list of GROUP NAME, or only those of `rxe:GROUP,...`, with commas
rxe_groups()
{
	local all part
	all=$(cut -d' ' -f1 "$1" | awk '!seen[$0]++' | paste -sd,)
	for part in ${STAGE_PARTS//,/ }; do
		if [[ ,$all, != *,$part,* ]]; then
			fail "rxe:$part" "no such group; there are: $all" >&2
			return 1
		fi
	done
	echo "${STAGE_PARTS:-$all}"
}

# Time limit of a group's guest in the long form: several times its time on an idle machine.
rxe_limit()
{
	case $1 in
	soak) echo 20000 ;;
	flaps | speed) echo 7500 ;;
	broken) echo 15000 ;;
	*) echo 4500 ;;
	esac
}

# rxe_guests LIMIT_S HOOKS GROUPS: runs the groups; rxe_results prints the results of their jobs
rxe_guests()
{
	if [ "$3" = two ]; then
		"$ROOT/tests/rxe/two.sh" "$BUILD_ROOT/rxe" "$BUILD_ROOT/build-test" $(($1 * LIMIT_TIMES))
	else
		"$ROOT/tests/rxe/guest.sh" --dir "$BUILD_ROOT/rxe" --timeout $(($1 * LIMIT_TIMES)) env "EPF_TEST_LONG=${EPF_TEST_LONG:-0}" "HOOKS=$2" \
			"LIMIT_TIMES=$LIMIT_TIMES" \
			"$ROOT/tests/rxe/jobs.sh" "$3" "$BUILD_ROOT/build-test"
	fi
}

rxe_results()
{
	cat "$BUILD_ROOT"/rxe/{last,two1,two2}/results 2>/dev/null
}

# rxe_run LIMIT_S HOOKS GROUPS WANT: runs the groups and counts each job in WANT (GROUP NAME); a job without a result fails, or is skipped with
# the guest. Groups of failed jobs run again in a separate guest, except in the long form; and those of jobs that did not run because the guest's kernel
# crashed or came to a standstill.
rxe_run()
{
	local group name result detail rc log=$LOGS/rxe-${3//,/-}.log ran=$LOGS/rxe.results again
	[ -n "$3" ] || return 0
	rxe_guest "$@" "$log" "$ran"
	rc=$?
	again=$(rxe_again "$ran" "$4" "$3" "$rc")
	if [ -n "$again" ] && { [ "$LONG" != yes ] || [ "$rc" = 125 ]; }; then
		cp "$ran" "$ran.first"
		printf '    again %s: exit status %s of the guest\n' "$again" "$rc"
		if rxe_guest "$1" "$2" "$again" "$4" "$log.again" "$ran.again"; then
			rc=0
		fi
		rxe_merge "$ran.first" "$ran.again" >"$ran"
	fi
	while IFS=$'\t' read -r result name detail; do
		"$result" "$name" "$detail"
	done <"$ran"
	while read -r group name; do
		if [[ ,$3, != *,$group,* ]] || cut -f2 "$ran" | grep -qxF "$name"; then
			continue
		elif [ "$rc" = 77 ]; then
			skip "$name" "$(tail -n 1 "$log")"
		else
			fail "$name" "no result; exit status $rc of the guest; whole output in $log"
		fi
	done <"$4"
	if [ "$rc" != 0 ] && [ "$rc" != 77 ] && ! grep -q '^fail' "$ran"; then
		fail "rxe jobs" "exit status $rc of the guest; whole output in $log"
	fi
	grep '^    group ' "$log"
}

# rxe_guest LIMIT_S HOOKS GROUPS WANT LOG RESULTS: runs one guest; on failure prints its output
rxe_guest()
{
	local rc name
	rm -f "$BUILD_ROOT"/rxe/{last,two1,two2}/results
	rxe_guests "$1" "$2" "$3" </dev/null >"$5" 2>&1
	rc=$?
	rxe_results >"$6"
	if [ "$rc" != 0 ] && [ "$rc" != 77 ]; then
		while read -r name; do
			rxe_output "$name" "$5"
		done < <(awk -F '\t' '$1 == "fail" { print $2 }' "$6")
		tail -n 40 "$5" | sed 's/^/        | /'
	fi
	return "$rc"
}

# rxe_output JOB LOG: the output of jobs.sh for that failed job
rxe_output()
{
	awk -v job="$1:" '/^        \|/ { said = said $0 "\n"; next } $1 == "fail" && $2 == job { printf "%s%s\n", said, $0 } { said = "" }' "$2"
}

# rxe_again RESULTS WANT GROUPS STATUS: the groups to run again
rxe_again()
{
	awk -F '\t' -v groups=",$3," -v fell="$(($4 == 125))" 'FILENAME == ARGV[1] { had[$2] = $1; next }
		{ split($0, f, " ") }
		index(groups, "," f[1] ",") && (f[2] in had ? had[f[2]] == "fail" : fell) { print f[1] }' "$1" "$2" | uniq | paste -sd,
}

# rxe_merge FIRST SECOND: the results of a first run, replaced by those of the second for jobs that failed or did not run; the first job that
# did not run is the one in which the first guest crashed
rxe_merge()
{
	awk -F '\t' -v OFS='\t' '
		function again(name, why) {
			split(second[name], s, FS)
			if (s[1] == "pass") print "passed_again", name, why; else print second[name]
		}
		FILENAME == ARGV[1] { second[$2] = $0; order[++n] = $2; next }
		{ seen[$2] = 1 }
		$1 != "fail" || !($2 in second) { print; next }
		{ again($2, $3) }
		END {
			for (i = 1; i <= n; i++)
				if (!(order[i] in seen)) {
					if (fell++) print second[order[i]]; else again(order[i], "the guest ended in it")
				}
		}' "$2" "$1"
}
