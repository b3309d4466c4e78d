# SPDX-License-Identifier: Apache-2.0
# Bash completion of ep-fabric and ep-bench: commands and options are what --help lists, so this file names none.
# shellcheck shell=bash

# Words that the help of a program, or of one of its commands, begins lines with: commands, or long options.
_ep_commands()
{
	"$@" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z0-9-]*\)  *.*/\1/p'
}

_ep_options()
{
	"$@" --help 2>/dev/null | sed -n 's/^ \{2,\}\(-[a-zA-Z?], *\)\{0,1\}\(--[a-z0-9-]*=\{0,1\}\).*/\2/p'
}

_ep_complete()
{
	local program=$1 now=${COMP_WORDS[COMP_CWORD]} word words=() i

	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		case $word in
		-* | =) ;;
		*) [ "${COMP_WORDS[i - 1]}" = = ] || words+=("$word") ;;
		esac
	done
	# A value of an option, and what is no option, may be a file.
	if [ "$now" = = ] || { [ "$COMP_CWORD" -gt 0 ] && [ "${COMP_WORDS[COMP_CWORD - 1]}" = = ]; }; then
		mapfile -t COMPREPLY < <(compgen -f -- "${now#=}")
		return
	fi
	case $now in
	-*) mapfile -t COMPREPLY < <(compgen -W "$(_ep_options "$program" "${words[@]}")" -- "$now") ;;
	*)
		mapfile -t COMPREPLY < <(compgen -W "$(_ep_commands "$program" "${words[@]}")" -- "$now")
		[ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$now")
		;;
	esac
	# "--name=" waits for its value.
	[[ ${COMPREPLY[0]:-} != *= ]] || compopt -o nospace 2>/dev/null || true
}

complete -F _ep_complete ep-fabric ep-bench ep-top
