# SPDX-License-Identifier: Apache-2.0
#
# The commands of a guide, for tests that run them: awk -v mark=WORD -f page_commands.awk PAGE. A command of the page is preceded by a line <!-- WORD: HOST[ &]: PATTERN -->; & leaves it
# running. Prints NUMBER, HOST, "&" or "-", PATTERN ("." if there is none) and COMMAND, with tabs between them; lines of one command are joined.
index($0, "<!-- " mark ": ") == 1 {
	text = substr($0, length(mark) + 8)
	sub(/ *-->$/, "", text)
	at = index(text, ":")
	host = at ? substr(text, 1, at - 1) : text
	pattern = at ? substr(text, at + 1) : ""
	sub(/^ /, "", pattern)
	bg = sub(/ &$/, "", host) ? "&" : "-"
	next
}
/^```sh$/ {
	inside = 1
	text = ""
	next
}
/^```$/ && inside {
	inside = 0
	if (host == "") {
		print "a command without a mark: " text >"/dev/stderr"
		exit 1
	}
	printf "%d\t%s\t%s\t%s\t%s\n", ++n, host, bg, pattern == "" ? "." : pattern, text
	host = ""
	next
}
inside {
	sub(/\\$/, "")
	text = text (text == "" ? "" : " ") $0
}
