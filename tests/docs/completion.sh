#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Completion as a shell does it: commands, commands of commands, options, and files where nothing else fits.
# Usage: completion.sh SOURCE-ROOT FOLDER-OF-EP-FABRIC
set -euo pipefail

PATH=$2:$PATH
# shellcheck source=/dev/null
source "$1/tools/completion/ep-fabric.bash"

# offers WANTED WORD...: what the last word may become holds the wanted one.
offers()
{
	local wanted=$1
	shift
	COMP_WORDS=("$@")
	COMP_CWORD=$(($# - 1))
	COMPREPLY=()
	_ep_complete "$1"
	printf '%s\n' "${COMPREPLY[@]}" | grep -qx -- "$wanted" || {
		echo "'$*' offers no $wanted, but: ${COMPREPLY[*]}" >&2
		exit 1
	}
}

offers status ep-fabric st
offers stats ep-fabric st
offers serve ep-fabric bootstrap s
offers --json ep-fabric status --j
offers --ready-fd= ep-fabric run --re
offers --ring-slots= ep-fabric run --ring
offers --world= ep-fabric bootstrap serve --wo
cd "$1"
offers README.md ep-fabric config --config = READ
if command -v zsh >/dev/null; then
	zsh -n "$1/tools/completion/_ep-fabric"
else
	echo "zsh is not here: its file was not checked"
fi
