# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Stages that run the release program: demo and bench. Sourced by tests/stages.sh, which has their helpers.

# The demo in the build of the unit tests. A subshell, because it may call die.
quick_demo()
(
	# shellcheck disable=SC2034
	BENCH=$BUILD_ROOT/build-test/bench/ep-bench
	small_demo
	demo_runs
)

stage_demo()
{
	local shape=(--small)
	if [ "$QUICK" = yes ]; then
		check "demo --small" quick_demo && sed 's/^/        | /' "$LOGS/demo-demo---small.log"
		return
	fi
	turn_of demo
	[ "$LONG" = no ] || shape=()
	check "demo --build-only" "$ROOT/tools/quickstart" demo --build-only --no-install --build-dir "$BUILD_ROOT" || return
	check "demo ${shape[*]}" "$ROOT/tools/quickstart" demo --no-install --build-dir "$BUILD_ROOT" "${shape[@]}" &&
		sed 's/^/        | /' "$LOGS/demo-demo-${shape[*]}.log"
	check "demo on a machine with 1 GiB scales down with a message" demo_scales_down
	check "ep-bench moe --json" moe_json
	check "high throughput as a user without rights" in_sandbox --mode ht --tokens 128
	check "low latency as a user without rights" in_sandbox --mode ll --tokens 16
	check "through daemons as a user without rights" in_sandbox --service --mode ht --tokens 32
	check "shapes through daemons" service_shapes
	check "the quickstart names missing packages" quickstart_refuses
}

in_sandbox()
{
	"$ROOT/tests/proc/sandbox.sh" "$BUILD_ROOT/$RELEASE/bench/ep-bench" "${DEMO_ARGS[@]}" "$@"
}

moe_json()
{
	local json=$LOGS/bench-moe.json
	"$BUILD_ROOT/$RELEASE/bench/ep-bench" moe --ranks 4 --nodes 2 --tokens 64 --hidden 1024 --topk 8 --experts 64 \
		--dispatch bf16 --mode ll --json >"$json" || return 1
	cat "$json"
	python3 "$ROOT/tests/results.py" bench moe "$json"
}

# Both modes and formats; ranks not divisible by nodes, one rank per node, one node; top-k entries of -1; a network that reorders,
# duplicates and drops. ep-bench judges the results.
service_shapes()
{
	local mode format bench=$BUILD_ROOT/$RELEASE/bench/ep-bench json=$LOGS/bench-moe-service.json bad=0
	local small=(moe --service --quiet --hidden 512 --tokens 32)
	for mode in ll ht; do
		for format in fp8 bf16; do
			service_shape "${small[@]}" --mode "$mode" --dispatch "$format" || bad=1
			service_shape "${small[@]}" --mode "$mode" --dispatch "$format" --ranks 5 --nodes 3 --experts 40 \
				--unselected 0.3 || bad=1
		done
		service_shape "${small[@]}" --mode "$mode" --ranks 4 --nodes 4 --experts 8 --topk 2 || bad=1
		service_shape "${small[@]}" --mode "$mode" --ranks 3 --nodes 1 --experts 6 --topk 2 || bad=1
		service_shape "${small[@]}" --mode "$mode" --ranks 7 --nodes 3 --experts 56 --topk 3 --unselected 0.1 \
			--order unordered --delay-us 20 --reorder 0.1 --duplicate 0.05 --drop 0.02 --seed 7 || bad=1
	done
	"$bench" "${small[@]}" --mode ht --json >"$json" || bad=1
	python3 "$ROOT/tests/results.py" bench moe "$json" || bad=1
	if "$bench" "${small[@]}" --local; then
		echo "--service together with --local was not refused"
		bad=1
	fi
	return "$bad"
}

service_shape()
{
	echo "== $*"
	timeout $((300 * LIMIT_TIMES)) "$BUILD_ROOT/$RELEASE/bench/ep-bench" "$@" && return 0
	echo "exit status $? (124: not within $((300 * LIMIT_TIMES)) s)"
	return 1
}

demo_scales_down()
{
	"$ROOT/tools/quickstart" demo --no-install --build-dir "$BUILD_ROOT" --memory 1100 >"$LOGS/demo-short.log" 2>&1
	local rc=$?
	cat "$LOGS/demo-short.log"
	[ "$rc" = 0 ] && grep -q 'MEMORY IS SHORT' "$LOGS/demo-short.log"
}

# With a PATH of basic tools only, it must name the missing packages and stop.
quickstart_refuses()
{
	local said rc tool bin=$LOGS/bin
	rm -rf "$bin" && mkdir -p "$bin" || return 1
	for tool in bash env readlink dirname cut cksum mkdir awk sort tr cat id; do
		ln -s "$(command -v "$tool")" "$bin/$tool" || return 1
	done
	said=$(PATH=$bin "$ROOT/tools/quickstart" demo --no-install --build-dir "$BUILD_ROOT" 2>&1)
	rc=$?
	echo "$said"
	[ "$rc" = 1 ] && grep -q 'apt-get install .*gcc.*meson' <<<"$said"
}

stage_bench()
{
	local form repeat=1
	# Repetition makes the medians steadier, which are not judged.
	[ "$LONG" = no ] || repeat=3
	compile_programs || return
	for form in "core --nic null" ring p2p "core --service --duration-ms 300 --runs 3" "p2p --service --rounds 3" \
		"jobs --repeat $repeat" empty; do
		# shellcheck disable=SC2086
		check "ep-bench $form --json" bench_run $form
		sed 's/^/        | /' "$LOGS/bench-${form%% *}.json"
	done
}

# bench_run FORM OPTION...: checks that the figures are valid and nothing was wrong. Speeds are printed, not judged.
bench_run()
{
	local form=$1
	"$BUILD_ROOT/build-test/bench/ep-bench" "$@" --json >"$LOGS/bench-$1.json" || return 1
	[ "${2-}" != --service ] || form=$1-service
	python3 "$ROOT/tests/results.py" bench "$form" "$LOGS/bench-$1.json"
}
