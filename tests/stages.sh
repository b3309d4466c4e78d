# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# The stages of `tools/quickstart test`, in the order they run: one function per stage, callable by name. tests/expected.txt alone lists what must
# exist. Sourced by tools/quickstart after tests/lib.sh. A stage reports through check, pass, fail, skip or tests/results.py, and must not exit. Here
# are what stages share and those that run suites of tests; the files sourced below have the others.

# shellcheck disable=SC2034
STAGES=(format static layers build headers aarch64 hot docs unit prop proc p2p rxe hosts hooks asan tsan fuzz demo frameworks nixl package bench)
[ "$LONG" = no ] || STAGES+=(mutate)
[ "$QUICK" = no ] || STAGES=(format layers build unit demo)

JOBS=$(nproc)
# Tests at a time: together they use half of a CPU each, as most of them wait for a fault, a deadline or another process.
TEST_JOBS=$((2 * JOBS))
[ "$LONG" = no ] || TEST_JOBS=$JOBS
# Limits against hanging, on a busy machine, and compilers for more than half of it: one a CPU beside two loops gets a third.
export LIMIT_TIMES=1
[ "$BUSY" = no ] || LIMIT_TIMES=4 JOBS=$((3 * JOBS))
# Seeds under a sanitizer, where every step is several times slower; printed.
SAN_SEEDS=100
SAN_PROC_SEEDS=4
# Factor for the number of inputs in expected.txt: a number, not seconds, so that a busy machine covers as much.
FUZZ_TIMES=1
if [ "$LONG" = yes ]; then
	export EPF_TEST_LONG=1 EPF_SEEDS=${EPF_SEEDS:-100000} EPF_PROC_SEEDS=${EPF_PROC_SEEDS:-1000}
	SAN_SEEDS=10000
	SAN_PROC_SEEDS=40
	FUZZ_TIMES=20
fi
FUZZ_COVERAGE=85
# Of the build under AddressSanitizer, which has the test hooks, too. -Og compiles in half the time of -O1, and the tests take hardly longer. For both
# sanitizers -g1 (functions and lines) is enough for reports, and compiles faster than -g.
ASAN_BUILD=(build-asan gcc -Dcuda=disabled -Dtest_hooks=true "-Db_sanitize=address,undefined" -Db_lundef=false -Doptimization=g -Dc_args=-g1)
# -Wno-tsan: gcc warns that fences are not modelled; only the wakeup has two.
TSAN_BUILD=(build-tsan gcc -Dcuda=disabled -Db_sanitize=thread -Db_lundef=false -Doptimization=g '-Dc_args=-Wno-tsan -g1')
FUZZ_BUILD=(build-fuzz clang-14 -Dfuzz=true -Db_lundef=false -Doptimization=1
	"-Dc_args=-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fprofile-instr-generate -fcoverage-mapping -g1"
	"-Dc_link_args=-fsanitize=address,undefined -fprofile-instr-generate")

# shellcheck source=tests/stages_code.sh
. "$ROOT/tests/stages_code.sh"
# shellcheck source=tests/stages_demo.sh
. "$ROOT/tests/stages_demo.sh"
# shellcheck source=tests/stages_package.sh
. "$ROOT/tests/stages_package.sh"
# shellcheck source=tests/stages_rxe.sh
. "$ROOT/tests/stages_rxe.sh"

# ---- helpers ------------------------------------------------------------------------------------

# tree_files PATTERN...: files of the tree, tracked or untracked, no build output
tree_files()
{
	git -C "$ROOT" -c safe.directory='*' ls-files -co --exclude-standard -- "$@" | while IFS= read -r f; do
		[ ! -f "$ROOT/$f" ] || printf '%s\n' "$f"
	done
}

# expected KIND: the rest of each line of that kind in tests/expected.txt
expected()
{
	awk -v kind="$1" '$1 == kind { $1 = ""; sub(/^ /, ""); print }' "$ROOT/tests/expected.txt"
}

# prepare NAME CC OPTION...: configures a build; counted only if it fails
prepare()
{
	configure "$@" >"$LOGS/$1-setup.log" 2>&1 && return 0
	tail -n 20 "$LOGS/$1-setup.log" | sed 's/^/        | /'
	fail "configure $1" "see $LOGS/$1-setup.log"
	return 1
}

# What most tests run: the code that packages hold.
prepare_test_build()
{
	prepare build-test gcc -Dbuildtype=release -Dwerror=true
}

# The programs that hosts and bench run.
compile_programs()
{
	prepare_test_build && compile_quietly build-test bench/ep-bench tools/ep-fabric
}

# compile BUILD TARGET...: one check
compile()
{
	local build=$1
	shift
	check "compile $build" ninja -C "$BUILD_ROOT/$build" -j "$JOBS" "$@"
}

# compile_quietly BUILD TARGET...: counted only if it fails; the build stage counts whole builds
compile_quietly()
{
	# shellcheck disable=SC2153
	local start log=$LOGS/$STAGE-$1-compile.log
	start=$(now_ms)
	if ! ninja -C "$BUILD_ROOT/$1" -j "$JOBS" "${@:2}" >"$log" 2>&1; then
		grep -v '^\[[0-9]*/[0-9]*\] ' "$log" | tail -n 40 | sed 's/^/        | /'
		fail "compile $1" "after $(seconds "$start"); whole output in $log"
		return 1
	fi
	printf '    compiled in %s: %s\n' "$1" "$(seconds "$start")"
}

# run_suites BUILD MULTIPLIER SUITE...: builds the targets of the suites' tests, runs them, counts each.
# Skipped, by name: tests labelled nosan under a sanitizer (they forbid its calls, or gain nothing from it), tests labelled slow with --quick. In the long form
# sanitizers run more seeds, and the short form of each test.
run_suites()
{
	local build=$1 multiplier=$2 suite name args=() with=() targets log start label="" left_out="" ran=$RESULTS.ran again=$RESULTS.again
	shift 2
	for suite in "$@"; do
		args+=(--suite "$suite")
	done
	[[ ! $build =~ ^build-[at]san$ ]] || { label=nosan && with=(env -u EPF_TEST_LONG); }
	[ "$QUICK" = no ] || label=slow
	if [ -n "$label" ]; then
		left_out=$(python3 "$ROOT/tests/results.py" labelled "$BUILD_ROOT/$build" "$label")
		args+=(--no-suite "$label")
	fi
	targets=$(python3 "$ROOT/tests/results.py" targets "$BUILD_ROOT/$build" "$@" ${label:+"-$label"})
	if [ -n "$targets" ]; then
		# shellcheck disable=SC2086
		compile_quietly "$build" $targets || return 1
	fi
	later_begin
	start=$(now_ms)
	# shellcheck disable=SC2153
	log=$BUILD_ROOT/$build/meson-logs/quickstart-$STAGE.json
	rm -f "$log" "$ran" "$again"
	multiplier=$((multiplier * LIMIT_TIMES))
	[ "$LONG" = no ] || multiplier=0
	(cd "$BUILD_ROOT/$build" && ${with[@]+"${with[@]}"} meson test --no-rebuild --logbase "quickstart-$STAGE" -t "$multiplier" \
		--num-processes "$TEST_JOBS" "${args[@]}") >"$LOGS/$STAGE-meson.log" 2>&1
	if [ -s "$log" ]; then
		[ "$LONG" != no ] || touch "$again"
		# shellcheck disable=SC2046
		SUITES_ARE_STAGES=${SUITES_ARE_STAGES:-} python3 "$ROOT/tests/results.py" count "$log" $(find "$again" 2>/dev/null) || fail "$STAGE" "tests/results.py could not read $log"
		[ ! -s "$again" ] || run_again "$build" "$multiplier" "$again"
	fi
	printf '    tests ran for %s\n' "$(seconds "$start")"
	[ -s "$ran" ] || absent "$STAGE" "no test in suite $*"
	while read -r suite name; do
		[ -z "${SUITES_ARE_STAGES:-}" ] || local STAGE=$suite
		if [[ " $* " != *" $suite "* ]] || grep -qxF "$name" "$ran" 2>/dev/null; then
			continue
		elif grep -qxF "$name" <<<"$left_out"; then
			skip "$name" "labelled $label"
		else
			absent "$name" "no such test in suite $suite"
		fi
	done < <(expected test)
}

# run_again BUILD MULTIPLIER LIST: runs failed tests again that results.py selects, one at a time and with the same seed. A shared machine is at times
# too slow for a test on its clock; a second failure counts. $RESULTS.ran of the first run is kept.
run_again()
{
	local log=$BUILD_ROOT/$1/meson-logs/quickstart-$STAGE-again.json name seed first=$RESULTS.first
	cp "$RESULTS.ran" "$first"
	while IFS=$'\t' read -r name seed; do
		rm -f "$log" "$RESULTS.ran"
		# shellcheck disable=SC2086
		(cd "$BUILD_ROOT/$1" && env $seed meson test --no-rebuild --logbase "quickstart-$STAGE-again" -t "$2" \
			--num-processes 1 "$name") >"$LOGS/$STAGE-meson-again.log" 2>&1 </dev/null
		[ ! -s "$log" ] || SUITES_ARE_STAGES=${SUITES_ARE_STAGES:-} python3 "$ROOT/tests/results.py" again "$log" "$seed"
		if ! grep -qxF "$name" "$RESULTS.ran" 2>/dev/null; then
			fail "$name" "it did not run again; see $LOGS/$STAGE-meson-again.log"
		fi
	done <"$3"
	mv "$first" "$RESULTS.ran"
}

# together SUITE...: for suites that are stages: the first of those stages that are requested runs the tests of all in one go; SUITES says which. Fails for the other
# stages. One after the other, each would leave CPUs idle while its last tests wait. With SUITES_ARE_STAGES results count for the stage of their suite;
# seconds count for the first.
declare -gA TOGETHER=()
together()
{
	local suite
	[ -z "${TOGETHER[$*]:-}" ] || return 1
	TOGETHER[$*]=yes
	SUITES=()
	for suite in "$@"; do
		[[ " ${REQUESTED[*]} " != *" $suite "* ]] || SUITES+=("$suite")
	done
}

# ahead_begin NAME COMMAND...: begins what a later stage needs. The stage waits for it (ahead_end NAME), and then does the same itself: nothing is left to do,
# or the stage reports what is wrong.
declare -gA AHEAD=()
ahead_begin()
{
	set -m # so that ahead_stop can end the whole process group
	"${@:2}" >"$LOGS/ahead-$1.log" 2>&1 &
	set +m
	AHEAD[$1]=$!
}

ahead_end()
{
	[ -z "${AHEAD[$1]:-}" ] || wait "${AHEAD[$1]}"
	AHEAD[$1]=
}

# ahead_stop NAME: the same, but ends what has not ended
ahead_stop()
{
	[ -z "${AHEAD[$1]:-}" ] || kill -- "-${AHEAD[$1]}" 2>/dev/null
	ahead_end "$1"
}

# Builds of later stages, if they are requested, are compiled with what running tests leave of the CPUs while they wait, which on a busy machine may be nothing.
# run_suites begins that (later_begin). A stage that compiles one of them ends it (turn_of STAGE), and compiles what is left.
LATER=(asan tsan fuzz demo)
later_begin()
{
	[ "$QUICK" = yes ] || [ ${#LATER[@]} = 0 ] || [ -n "${AHEAD[later]:-}" ] || ahead_begin later compile_later
}

turn_of()
{
	local stage left=()
	ahead_stop later
	for stage in "${LATER[@]}"; do
		[ "$stage" = "$1" ] || left+=("$stage")
	done
	LATER=("${left[@]}")
}

compile_later()
{
	local stage
	renice -n 19 "$BASHPID"
	for stage in "${LATER[@]}"; do
		[[ " ${REQUESTED[*]} " != *" $stage "* ]] || "later_$stage"
	done
}

later_asan()
{
	configure "${ASAN_BUILD[@]}" && compile_suites build-asan unit prop proc p2p hooks -nosan
}

later_tsan()
{
	configure "${TSAN_BUILD[@]}" && compile_suites build-tsan threads -nosan
}

later_fuzz()
{
	# shellcheck disable=SC2046
	LLVM_PROFILE_FILE=$LOGS/fuzz-setup.profraw configure "${FUZZ_BUILD[@]}" &&
		ninja -C "$BUILD_ROOT/build-fuzz" -j "$JOBS" $(expected fuzz | sed 's,^\([^ ]*\).*,tests/fuzz/\1,')
}

later_demo()
{
	build_release
}

# compile_suites BUILD SUITE...: the programs of these suites' tests
compile_suites()
{
	# shellcheck disable=SC2046
	ninja -C "$BUILD_ROOT/$1" -j "$JOBS" $(python3 "$ROOT/tests/results.py" targets "$BUILD_ROOT/$1" "${@:2}")
}

# ---- stages -------------------------------------------------------------------------------------

stage_headers()
{
	prepare_test_build && run_suites build-test 3 headers
}

stage_hot()
{
	local objects
	prepare_test_build || return
	objects=$(python3 "$ROOT/tests/check_hot.py" --list "$BUILD_ROOT/build-test" "$ROOT")
	# shellcheck disable=SC2046
	[ -z "$objects" ] || compile_quietly build-test $(cut -d ' ' -f 1 <<<"$objects") || return
	run_suites build-test 3 hot
	for object in $(expected hot); do
		grep -q " $object$" <<<"$objects" || absent "$object" "no hot object of it"
	done
}

stage_docs()
{
	prepare_test_build && run_suites build-test 3 docs
}

stage_unit()
{
	run_together
}

stage_prop()
{
	run_together
}

stage_proc()
{
	run_together
}

stage_p2p()
{
	run_together
}

run_together()
{
	together unit prop proc p2p || return 0
	[[ " ${SUITES[*]} " != *" proc "* ]] || fetch_promtool
	local SUITES_ARE_STAGES=yes # not exported: the tests of results.py run here, too
	prepare_test_build && run_suites build-test 3 "${SUITES[@]}"
}

fetch_promtool()
{
	local -x STAGE=proc
	check "promtool of the package prometheus" "$ROOT/tests/promtool.sh" "$BUILD_ROOT/build-promtool" &&
		PROMTOOL=$(tail -n 1 "$LOGS/proc-promtool-of-the-package-prometheus.log") && export PROMTOOL
}

# Jobs on hosts made of namespaces; tests/expected.txt lists the cases. Never run again: no case is judged by its time.
stage_hosts()
{
	local log=$LOGS/hosts.log name rc
	compile_programs || return 0
	"$ROOT/tests/hosts/jobs.sh" "$BUILD_ROOT/build-test" "$LOGS" >"$log" 2>&1
	rc=$?
	sed -n 's/^# /        | /p' "$log"
	while read -r name; do
		if grep -qx "ok $name" "$log"; then
			pass "hosts $name"
		elif grep -q "^skip $name: " "$log"; then
			skip "hosts $name" "$(sed -n "s/^skip $name: //p" "$log")"
		elif [ "$rc" = 77 ]; then
			skip "hosts $name" "$(tail -n 1 "$log")"
		else
			sed -n "/^    | /{H;d}; /^FAIL $name: /{x;p}; s/.*//; h" "$log" | sed '/^$/d'
			fail "hosts $name" "$(grep "^FAIL $name: " "$log" | sed "s/^FAIL $name: //" | grep . || echo "no result; see $log")"
		fi
	done < <(expected hosts)
}

# Each hook breaks the engine in one way; the suite passes only if each is caught within 20 seeds. The build is that of the stage asan.
stage_hooks()
{
	turn_of hooks
	prepare "${ASAN_BUILD[@]}" && run_suites build-asan 6 hooks
	compile_programs && check "a release program holds no hook" no_hooks_in_release
}

no_hooks_in_release()
{
	! find "$BUILD_ROOT/build-test/"{fabric,queues,bootstrap,kernels,tools,bench} -name '*.o' -exec nm -A {} + | grep -i 'epf_\w*hook'
}

stage_asan()
{
	turn_of asan
	prepare "${ASAN_BUILD[@]}" || return
	echo "    under AddressSanitizer and UBSan: EPF_SEEDS=$SAN_SEEDS EPF_PROC_SEEDS=$SAN_PROC_SEEDS"
	EPF_SEEDS=$SAN_SEEDS EPF_PROC_SEEDS=$SAN_PROC_SEEDS run_suites build-asan 6 unit prop proc p2p
}

stage_tsan()
{
	turn_of tsan
	prepare "${TSAN_BUILD[@]}" || return
	echo "    under ThreadSanitizer: EPF_SEEDS=$SAN_SEEDS EPF_PROC_SEEDS=$SAN_PROC_SEEDS"
	EPF_SEEDS=$SAN_SEEDS EPF_PROC_SEEDS=$SAN_PROC_SEEDS run_suites build-tsan 10 threads
}

stage_fuzz()
{
	local name runs files targets=()
	# meson runs what it compiles to try the compiler, here, where a profile would be left behind.
	local -x LLVM_PROFILE_FILE=$LOGS/fuzz-setup.profraw
	turn_of fuzz
	prepare "${FUZZ_BUILD[@]}" || return
	while read -r name runs files; do
		if ninja -C "$BUILD_ROOT/build-fuzz" -t query "tests/fuzz/$name" >/dev/null 2>&1; then
			targets+=("tests/fuzz/$name")
		else
			absent "fuzzer $name" "no target tests/fuzz/$name, which covers $files"
		fi
	done < <(expected fuzz)
	[ ${#targets[@]} -gt 0 ] || return
	compile_quietly build-fuzz "${targets[@]}" || return
	while read -r name runs files; do
		[[ " ${targets[*]} " == *" tests/fuzz/$name "* ]] || continue
		# shellcheck disable=SC2086
		check_beside "fuzzer $name, $((runs * FUZZ_TIMES)) inputs, $FUZZ_COVERAGE % of $files" fuzz_one "$name" "$((runs * FUZZ_TIMES))" $files
	done < <(expected fuzz)
	wait_beside
}

# fuzz_one NAME RUNS FILE...: runs one fuzzer from its seeds, then checks its coverage of each FILE
fuzz_one()
{
	local name=$1 runs=$2 file work=$BUILD_ROOT/build-fuzz/run/$1 seeds=$ROOT/tests/fuzz/seeds/$1 bad=0
	local program=$BUILD_ROOT/build-fuzz/tests/fuzz/$1
	shift 2
	[ -d "$seeds" ] || { echo "no seeds in tests/fuzz/seeds/$name" && return 1; }
	rm -rf "$work"
	mkdir -p "$work/corpus" || return 1
	cd "$work" || return 1
	LLVM_PROFILE_FILE=$work/raw "$program" -runs="$runs" -seed=1 -timeout=$((60 * LIMIT_TIMES)) -rss_limit_mb=1024 \
		-artifact_prefix="$work/" "$work/corpus" "$seeds" || return 1
	llvm-profdata-14 merge -o "$work/profile" "$work/raw" || return 1
	for file in "$@"; do
		# Prints the lines that no input reached.
		llvm-cov-14 show "$program" -instr-profile="$work/profile" 2>/dev/null |
			awk -v file="/$file:" '/^\/.*:$/ { on = index($0, file) } on && /^ *[0-9]+\| +0\|/'
		llvm-cov-14 export "$program" -instr-profile="$work/profile" -summary-only |
			python3 "$ROOT/tests/results.py" coverage "$FUZZ_COVERAGE" "$ROOT/$file" || bad=1
	done
	return "$bad"
}

# Small changes to a copy of the tree, of which each must be noticed by a test (tests/mutate), in its short form: the long one of a single test takes half an hour. All
# of them: tests/mutate/mutate.py run
stage_mutate()
{
	check "a random tenth of the small changes is noticed" env -u EPF_TEST_LONG -u EPF_SEEDS -u EPF_PROC_SEEDS python3 "$ROOT/tests/mutate/mutate.py" run --part 10 --work "$BUILD_ROOT/build-mutate" &&
		grep -h '^# ' "$LOGS/mutate-a-random-tenth-of-the-small-changes-is-noticed.log" | sed 's/^/    /'
}
