# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Stages that install: package, and frameworks and nixl, which run on packages of others that they fetch. Sourced by tests/stages.sh, which has their
# helpers.

# Begins the packages' build with the objects of build-test, whose flags are the same (ninja compiles again what differs). From nothing: the long form.
package_build()
{
	local dir=$BUILD_ROOT/build-package
	[ ! -f "$dir/build.ninja" ] || return 0
	prepare_test_build && ninja -C "$BUILD_ROOT/build-test" || return
	rm -rf "$dir"
	cp -a "$BUILD_ROOT/build-test" "$dir" && meson setup --reconfigure "$dir" "$ROOT" -Dtests=disabled -Dhip=disabled
}

# The clean Debian root that the packages are installed on, as a tar file of this run. Fetched ahead (prefetch); where that fails, install.sh says why.
package_root()
{
	rm -rf "$BUILD_ROOT/build-package-clean" && mkdir "$BUILD_ROOT/build-package-clean" &&
		"$ROOT/tests/package/install.sh" --root "$BUILD_ROOT/build-package-clean/root.tar"
}

# Builds the Debian packages and installs them on a clean root, then the wheels, in empty environments; tests/expected.txt lists the cases.
stage_package()
{
	local log=$LOGS/package.log tar=$BUILD_ROOT/build-package-clean/root.tar clean_root=() name detail installs rc
	package_build >"$LOGS/package-begin.log" 2>&1 || { fail "begin of the packages' build" "see $LOGS/package-begin.log" && return; }
	check "packages are made" "$ROOT/tools/package/build" --build-dir "$BUILD_ROOT/build-package" "$BUILD_ROOT/build-package-out" || return 0
	ahead_end package
	[ ! -f "$tar" ] || clean_root=("$tar")
	"$ROOT/tests/package/install.sh" "$BUILD_ROOT/build-package-out" "$BUILD_ROOT/build-package-root" "${clean_root[@]}" >"$log" 2>&1 &
	installs=$!
	# The same build folder again: only the links are made anew.
	check "wheels are made" "$ROOT/tools/package/wheel" --build-dir "$BUILD_ROOT/build-package" "$BUILD_ROOT/build-package-wheels" &&
		"$ROOT/tests/package/wheel.sh" "$BUILD_ROOT/build-package-wheels" "$BUILD_ROOT/build-package-environments" >"$log.wheels" 2>&1
	wait "$installs"
	rc=$?
	rm -f "$tar"
	"$ROOT/tests/package/contents.sh" "$BUILD_ROOT/build-package-out" >>"$log" 2>&1
	cat "$log.wheels" >>"$log"
	[ -z "${EPF_TEST_LONG:-}" ] || check "packages are reproducible" "$ROOT/tests/package/reproducible.sh" "$BUILD_ROOT/build-package-twice"
	while read -r name; do
		detail=$(sed -n "s/^FAIL $name: //p" "$log")
		if grep -qx "ok $name" "$log"; then
			pass "package $name"
		elif grep -qx "skip $name" "$log"; then
			skip "package $name" "systemd-analyze is not here"
		elif [ "$rc" = 77 ] && [ "${name#wheel}" = "$name" ] && [ -z "$detail" ]; then
			skip "package $name" "$(sed -n 1p "$log")"
		else
			fail "package $name" "${detail:-no result; see $log}"
		fi
	done < <(expected package)
}

# keep_bytecode COMMAND...: runs it so that Python keeps the bytecode of fetched packages, which ship without it. A rank that has to compile PyTorch and
# Megatron-core needs 11 s of CPU time before it begins, one with bytecode 5 s.
keep_bytecode()
{
	mkdir -p "$BUILD_ROOT/build-bytecode" && PYTHONPYCACHEPREFIX=$BUILD_ROOT/build-bytecode PYTHONDONTWRITEBYTECODE='' "$@"
}

# What the stages frameworks and nixl run, as NAME FOLDER.
FETCHED="cpu build-frameworks
sources build-sources
nixl-1.3 build-nixl/1.3
nixl-1.4 build-nixl/1.4
nixl-1.5 build-nixl/1.5"

# prefetch STAGE...: fetches what these stages download, while others compile.
prefetch()
{
	local stages=" $* "
	[[ $stages != *" aarch64 "* ]] || ahead_begin aarch64 aarch64_root "$BUILD_ROOT/$AARCH64_ROOT"
	[[ $stages != *" package "* ]] || ahead_begin package package_root
	[[ $stages != *" frameworks "* || $stages != *" nixl "* ]] || ahead_begin pypi prefetch_pypi
}

prefetch_pypi()
{
	local name folder
	while read -r name folder; do
		/usr/bin/python3 "$ROOT/tools/frameworks/fetch.py" "$name" "$BUILD_ROOT/$folder"
	done <<<"$FETCHED"
}

# fetched CHECK NAME: one check
fetched()
{
	ahead_end pypi
	check "$1" /usr/bin/python3 "$ROOT/tools/frameworks/fetch.py" "$2" "$BUILD_ROOT/$(sed -n "s/^$2 //p" <<<"$FETCHED")"
}

stage_frameworks()
{
	run_fetched
}

stage_nixl()
{
	run_fetched
}

run_fetched()
{
	local suite ready=()
	together frameworks nixl || return 0
	for suite in "${SUITES[@]}"; do
		! "fetch_$suite" || ready+=("$suite")
	done
	[ ${#ready[@]} -gt 0 ] || return
	# shellcheck disable=SC2034
	local SUITES_ARE_STAGES=yes
	prepare_test_build && keep_bytecode run_suites build-test 3 "${ready[@]}"
}

# Megatron-core and transformers on CPU tensors, with packages from PyPI that are fetched once into the build directory; without them all is skipped.
fetch_frameworks()
{
	local -x STAGE=frameworks
	export FRAMEWORKS=$BUILD_ROOT/build-frameworks SOURCES=$BUILD_ROOT/build-sources
	fetched "sources of frameworks" sources
	case $? in
	0) ;;
	77) unset SOURCES ;;
	*) return 1 ;;
	esac
	fetched "packages of frameworks" cpu
	case $? in
	0) ;;
	77) unset FRAMEWORKS ;;
	*) return 1 ;;
	esac
}

# Our back end in NIXL's agents: three releases from PyPI, fetched once into the build directory; without them all is skipped.
fetch_nixl()
{
	local -x STAGE=nixl
	local version rc
	export NIXL=$BUILD_ROOT/build-nixl
	for version in 1.3 1.4 1.5; do
		fetched "NIXL $version" "nixl-$version"
		rc=$?
		[ "$rc" = 0 ] || [ "$rc" = 77 ] || return 1
	done
}
