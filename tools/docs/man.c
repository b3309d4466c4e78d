/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a manual page from its source in docs/man/: lines that begin with '@' are replaced by what the tables, the programs' own
 * --help and the headers say, all else is copied. Run by the build, so that a page cannot lag behind. It must never know an option, a
 * setting or a counter by name.
 *
 *   @help PROGRAM [COMMAND]   what --help says: usage, description, and options that are no settings
 *   @commands PROGRAM         a part for each command that PROGRAM --help lists
 *   @settings                 every row of conf_keys.h
 *   @variables                what is read from the environment only
 *   @errors                   every row of err_keys.h
 *   @counters                 every row of stats_keys.h
 *   @strings FILE ARRAY       the lines of an array of strings in a source, as they stand there
 *   @api HEADER               the comments of a header, each behind the declarations that follow it
 *   @VERSION@                 within a line: the version of the release
 */
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "queues/epf_stats.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

enum { PROGRAMS_MAX = 8, LINE_BYTES = 8192 };

static struct {
	const char *version, *root;
	const char *name[PROGRAMS_MAX], *path[PROGRAMS_MAX];
	int programs;
} given;

static const char *source;
static int line_number;

static _Noreturn void die(const char *what, const char *which)
{
	fprintf(stderr, "man: %s:%d: %s: %s\n", source, line_number, what, which);
	exit(1);
}

/* Text that means nothing to troff; at the start of a line a dot or quote would. */
static void put(FILE *out, const char *text, bool starts_line)
{
	if (starts_line && (*text == '.' || *text == '\''))
		fputs("\\&", out);
	for (; *text; text++) {
		if (*text == '\\')
			fputs("\\e", out);
		else if (*text == '-')
			fputs("\\-", out);
		else
			fputc(*text, out);
	}
}

static void put_line(FILE *out, const char *text)
{
	put(out, text, true);
	fputc('\n', out);
}

/* ---- tables --------------------------------------------------------------------------------- */

static void put_settings(FILE *out)
{
	int group = -1;

	for (int i = 0; i < EPF_CONF_KEYS; i++) {
		const struct epf_conf_key *key = epf_conf_key((enum epf_conf_id)i);
		int g = (int)epf_conf_group_of((enum epf_conf_id)i);
		char range[160], variable[64];

		if (g != group)
			fprintf(out, ".SS %s\n", epf_conf_group_title((enum epf_conf_group)g));
		group = g;
		epf_conf_range(key, range, sizeof(range));
		epf_conf_variable_name(key, variable, sizeof(variable));
		fputs(".TP\n.BR ", out);
		put(out, key->name, false);
		fputs(" \" (", out);
		put(out, range, false);
		fputs(", default ", out);
		put(out, *key->def ? key->def : "empty", false);
		fputs(")\"\n", out);
		put_line(out, key->doc);
		fputs("Variable\n.BR ", out);
		put(out, variable, false);
		fputs(" .\n", out);
		if (*key->aliases) {
			fputs("Falls back to\n.BR ", out);
			put(out, key->aliases, false);
			fputs(" .\n", out);
		}
	}
}

static void put_variables(FILE *out)
{
	for (const struct epf_conf_variable *v = epf_conf_variables(); v->name; v++) {
		fputs(".TP\n.B ", out);
		put_line(out, v->name);
		put_line(out, v->doc);
	}
}

static void put_errors(FILE *out)
{
	size_t count;
	const struct epf_reason_info *row = epf_reason_table(&count);

	for (size_t i = 0; i < count; i++) {
		fprintf(out, ".TP\n.BR EPF\\-%d \" (%s)\"\n", (int)row[i].reason,
			strerrorname_np(row[i].err));
		put_line(out, row[i].cause);
		fputs("What to do: ", out);
		put(out, row[i].remedy, false);
		fputs(".\n", out);
	}
}

static void put_counter(FILE *out, const char *name, const char *unit, const char *type,
			const char *states, const char *help)
{
	fputs(".TP\n.BR ", out);
	put(out, name, false);
	fprintf(out, " \" (%s, ", type);
	put(out, *states ? states : unit, false);
	fputs(")\"\n", out);
	put_line(out, help);
}

static void put_class(FILE *out, const char *name, const char *help)
{
	fputs(".SS ", out);
	put_line(out, name);
	put_line(out, help);
}

static void put_counters(FILE *out)
{
#define EPF_CLASS(id, name, help, labels) put_class(out, name, help);
#define EPF_ROW(cls, id, name, unit, type, states, help) \
 put_counter(out, name, unit, #type, states, help);
#include "queues/stats_keys.h"
}

/* ---- programs ------------------------------------------------------------------------------- */

static FILE *open_help(const char *program, const char *command)
{
	char line[4096];
	FILE *f;

	for (int i = 0; i < given.programs; i++) {
		if (strcmp(given.name[i], program) != 0)
			continue;
		/* One line an option, and settings where they can be separated from options. */
		snprintf(line, sizeof(line),
			 "ARGP_HELP_FMT=rmargin=8000,opt-doc-col=60 '%s' %s --help", given.path[i],
			 command);
		f = popen(line, "r");
		if (!f)
			die(program, strerror(errno));
		return f;
	}
	die("no --program of this name was given", program);
}

static void close_help(FILE *f, const char *program)
{
	if (pclose(f))
		die("--help failed", program);
}

/* "  -j, --json      Print ..." becomes a tagged paragraph. */
static void put_option(FILE *out, char *line)
{
	char *option = line + strspn(line, " "), *doc = strstr(option, "  ");

	if (doc) {
		*doc = '\0';
		doc += 2;
		doc += strspn(doc, " ");
	}
	fputs(".TP\n.B ", out);
	put_line(out, option);
	put_line(out, doc ? doc : "");
}

static bool is_option(const char *line)
{
	size_t blanks = strspn(line, " ");

	return blanks >= 2 && line[blanks] == '-';
}

static void put_commands(FILE *out, const char *program, const char *command);

static void put_help(FILE *out, const char *program, const char *command)
{
	char line[LINE_BYTES];
	FILE *f = open_help(program, command);
	bool usage = true, has_settings = false, has_commands = false;

	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		if (usage) {
			char *at = strncmp(line, "Usage: ", 7) ? line : line + 7;

			fputs(".nf\n", out);
			has_commands = strstr(at, " COMMAND") != NULL;
			put_line(out, at);
			fputs(".fi\n.PP\n", out);
			usage = false;
		} else if (has_settings || strstr(line, "--help") || strstr(line, "--usage") ||
			   strstr(line, "Mandatory or optional arg")) {
			continue; /* as everywhere */
		} else if (!strncmp(line, "      --config=", 15)) {
			has_settings = true; /* what follows stands in ep-fabric.conf(5) */
		} else if (is_option(line)) {
			put_option(out, line);
		} else if (*line) {
			fputs(".PP\n", out);
			put_line(out, line + strspn(line, " "));
		}
	}
	close_help(f, program);
	if (has_settings)
		fputs(".PP\nAnd the settings of\n.BR ep\\-fabric.conf (5),\nas options.\n", out);
	if (has_commands)
		put_commands(out, program, command);
}

/* A part for each command that the help of @command ("": of the program) lists. */
static void put_commands(FILE *out, const char *program, const char *command)
{
	char line[LINE_BYTES], words[256];
	FILE *f = open_help(program, command);

	while (fgets(line, sizeof(line), f)) {
		char *name = line + 2;

		if (strncmp(line, "  ", 2) || !islower((unsigned char)*name))
			continue;
		name[strcspn(name, " \n")] = '\0';
		snprintf(words, sizeof(words), "%.100s%s%.100s", command, *command ? " " : "",
			 name);
		fprintf(out, ".SS %s ", program);
		put_line(out, words);
		put_help(out, program, words);
	}
	close_help(f, program);
}

/* ---- headers -------------------------------------------------------------------------------- */

/* A comment's text without its decoration; blank lines part paragraphs, "@x: " and " - " begin one. */
static void put_comment_line(FILE *out, char *line)
{
	char *end = strstr(line, "*/");

	if (end)
		*end = '\0';
	line += strspn(line, " \t/*");
	for (char *p = line + strlen(line); p > line && isspace((unsigned char)p[-1]);)
		*--p = '\0';
	if (!*line) {
		fputs(".sp\n", out);
	} else {
		if (*line == '@' || *line == '-')
			fputs(".br\n", out);
		put_line(out, line);
	}
}

/* Comments at the left margin with the declarations behind them; the first one is about the file. */
static void put_api(FILE *out, const char *header)
{
	char path[4096], line[LINE_BYTES];
	bool in_comment = false, in_code = false, is_hidden = false;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", given.root, header);
	f = fopen(path, "re");
	if (!f)
		die(path, strerror(errno));
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		if (!in_comment && !strncmp(line, "/*", 2)) {
			is_hidden = strstr(line, "SPDX") != NULL;
			if (in_code)
				fputs(".fi\n", out);
			in_code = false;
			in_comment = true;
			if (!is_hidden)
				fputs(".PP\n", out);
		}
		if (in_comment) {
			bool ends = strstr(line, "*/") != NULL;

			if (!is_hidden)
				put_comment_line(out, line);
			in_comment = !ends;
		} else if (*line && *line != '#' && strcmp(line, "extern \"C\" {") &&
			   strcmp(line, "}")) {
			if (!in_code)
				fputs(".PP\n.nf\n", out);
			in_code = true;
			put_line(out, line);
		}
	}
	if (in_code)
		fputs(".fi\n", out);
	fclose(f);
}

/* ---- texts inside programs ------------------------------------------------------------------ */

/* One string literal a line, as the source has it; a backslash in it escapes the character that follows. */
static void put_strings(FILE *out, const char *file, const char *array)
{
	char path[4096], line[LINE_BYTES], begin[128];
	bool inside = false;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", given.root, file);
	snprintf(begin, sizeof(begin), "%s[] = {", array);
	f = fopen(path, "re");
	if (!f)
		die(path, strerror(errno));
	fputs(".nf\n", out);
	while (fgets(line, sizeof(line), f)) {
		char *from = strchr(line, '"'), *to = strrchr(line, '"'), *at = line;

		if (!inside) {
			inside = strstr(line, begin) != NULL;
			continue;
		}
		if (!from || from == to)
			break;
		for (from++; from < to; from++) {
			from += *from == '\\';
			*at++ = *from;
		}
		*at = '\0';
		put_line(out, line);
	}
	fputs(".fi\n", out);
	fclose(f);
	if (!inside)
		die("no such array", array);
}

/* ---- pages ---------------------------------------------------------------------------------- */

static void put_directive(FILE *out, char *line)
{
	char *rest, *word = strtok_r(line, " ", &rest), *one = strtok_r(NULL, " ", &rest);
	char *two = strtok_r(NULL, " ", &rest);

	if (!strcmp(word, "@settings"))
		put_settings(out);
	else if (!strcmp(word, "@variables"))
		put_variables(out);
	else if (!strcmp(word, "@errors"))
		put_errors(out);
	else if (!strcmp(word, "@counters"))
		put_counters(out);
	else if (!strcmp(word, "@help") && one)
		put_help(out, one, two ? two : "");
	else if (!strcmp(word, "@commands") && one)
		put_commands(out, one, "");
	else if (!strcmp(word, "@strings") && one && two)
		put_strings(out, one, two);
	else if (!strcmp(word, "@api") && one)
		put_api(out, one);
	else
		die("no directive, or something is missing", word);
}

static void put_source_line(FILE *out, const char *line)
{
	const char *mark = strstr(line, "@VERSION@");

	if (mark)
		fprintf(out, "%.*s%s%s\n", (int)(mark - line), line, given.version, mark + 9);
	else
		fprintf(out, "%s\n", line);
}

static int make(const char *to)
{
	char line[LINE_BYTES];
	FILE *in = fopen(source, "re"), *out = fopen(to, "we");

	if (!in || !out)
		die(in ? to : source, strerror(errno));
	while (fgets(line, sizeof(line), in)) {
		line_number++;
		line[strcspn(line, "\n")] = '\0';
		if (*line == '@')
			put_directive(out, line);
		else
			put_source_line(out, line);
	}
	fclose(in);
	if (ferror(out) | fclose(out))
		die(to, strerror(errno));
	return 0;
}

int main(int argc, char **argv)
{
	for (int i = 5; i < argc; i++) {
		char *eq = strchr(argv[i], '=');

		if (!eq || given.programs == PROGRAMS_MAX)
			return EXIT_USAGE;
		*eq = '\0';
		given.name[given.programs] = argv[i];
		given.path[given.programs++] = eq + 1;
	}
	if (argc < 5) {
		fputs("usage: man SOURCE PAGE VERSION SOURCE-ROOT [PROGRAM=PATH...]\n", stderr);
		return EXIT_USAGE;
	}
	source = argv[1];
	given.version = argv[3];
	given.root = argv[4];
	return make(argv[2]);
}
