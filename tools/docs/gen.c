/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the documents that come from the tables err_keys.h and conf_keys.h: docs/errors.md,
 * docs/config.md and a sample configuration file. Run by the build: "check" is the test that the
 * committed pages equal the tables, the target "docs" writes them again. It must never say anything
 * about a row that the row does not say.
 */
#include "fabric/base/conf.h"
#include "fabric/base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

/* Text inside a cell of a Markdown table. */
static void cell(FILE *out, const char *text)
{
	for (; *text; text++)
		fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

static void errors_md(FILE *out)
{
	static const char *const groups[] = {
		"",
		"Configuration",
		"Bootstrap",
		"Commands and regions",
		"NICs, lanes and peers",
		"Memory and system",
		"Usage of moe and bench",
	};
	size_t count;
	const struct epf_reason_info *row = epf_reason_table(&count);
	size_t group = 0;

	fputs("# Errors\n\n"
	      "Made from `fabric/base/err_keys.h` by `tools/gen errors-md`; do not edit.\n\n"
	      "Each failing call of the library records one line, `<detail>: <remedy> "
	      "[EPF-<number>]`,\nand returns minus the errno value. Where the system gave the "
	      "reason, its errno value is\nreturned in place of the one below. Numbers never "
	      "change their meaning.\n",
	      out);
	for (size_t i = 0; i < count; i++) {
		size_t g = (size_t)row[i].reason / 100;

		if (g != group) {
			fprintf(out, "\n## %zu: %s\n\n", g * 100,
				g < sizeof(groups) / sizeof(groups[0]) ? groups[g] : "Other");
			fputs("| Code | Name | errno | What happened | What to do |\n"
			      "|---|---|---|---|---|\n",
			      out);
		}
		group = g;
		fprintf(out, "| EPF-%d | `%s` | %s | ", (int)row[i].reason, row[i].name,
			strerrorname_np(row[i].err));
		cell(out, row[i].cause);
		fputs(" | ", out);
		cell(out, row[i].remedy);
		fputs(" |\n", out);
	}
}

static const char *type_name(enum epf_conf_type type)
{
	static const char *const names[] = {
		[EPF_CONF_BOOL] = "yes or no",   [EPF_CONF_UINT] = "number",
		[EPF_CONF_POW2] = "number",      [EPF_CONF_AUTO] = "number",
		[EPF_CONF_SIZE] = "size",        [EPF_CONF_TIME] = "time",
		[EPF_CONF_PROB] = "probability", [EPF_CONF_ENUM] = "one of",
		[EPF_CONF_STRING] = "text",      [EPF_CONF_PATH] = "path",
		[EPF_CONF_SECRET] = "secret",    [EPF_CONF_LIST] = "list",
		[EPF_CONF_CPUS] = "CPU list",
	};

	return names[type];
}

static const char config_md_head[] =
	"# Configuration\n\n"
	"Made from `fabric/base/conf_keys.h` by `tools/gen config-md`; do not edit.\n\n"
	"Every setting has one name in three forms: the option `--ring-slots`, the environment\n"
	"variable `EPF_RING_SLOTS`, and the line `ring-slots = 4096` (or `ring_slots`) of a "
	"file.\n"
	"`ep-fabric config` prints each value with its origin.\n\n"
	"When several places set the same name, the first of these wins:\n\n"
	"1. the command line;\n"
	"2. an option given by the program that uses the library;\n"
	"3. the environment;\n"
	"4. the file named by `--config`, else by `EPF_CONFIG`;\n"
	"5. `" EPF_CONF_SYSTEM_FILE "`;\n"
	"6. variables of other products, listed as aliases below;\n"
	"7. the default.\n\n"
	"A value outside its range is an error that names the range. An unknown name is an error "
	"in a\n"
	"file and a warning in the environment.\n\n"
	"| Written as | Examples |\n"
	"|---|---|\n"
	"| number | `4096`, `0x1000` |\n"
	"| size | `4096`, `64k`, `64KiB`, `2MiB`, `1.5G`: powers of 1024; `MB` is refused as "
	"ambiguous |\n"
	"| time | `100us`, `1.5ms`, `2s`, `5min`, `1h`, `ns`; only `0` needs no unit |\n"
	"| probability | `0.01`; at most 9 decimals |\n"
	"| list | texts with commas |\n"
	"| CPU list | `0,2-5` |\n"
	"| secret | any text; only from the environment, never shown |\n\n"
	"A file has one `name = value` a line. A line that starts with `#` or `;` is a comment, "
	"and so is\n"
	"` ;` behind a value. There are no sections, no name comes twice, and a file is at most "
	"1 MiB.\n";

static void config_row(FILE *out, const struct epf_conf_key *key)
{
	char range[160], variable[64];

	epf_conf_range(key, range, sizeof(range));
	epf_conf_variable_name(key, variable, sizeof(variable));
	fprintf(out, "| `%s` | `%s` | %s: ", key->name, variable, type_name(key->type));
	cell(out, range);
	fprintf(out, " | %s%s%s | %s | ", *key->def ? "`" : "", *key->def ? key->def : "empty",
		*key->def ? "`" : "", key->level == EPF_CONF_BASIC ? "basic" : "expert");
	cell(out, key->doc);
	if (*key->aliases)
		fprintf(out, " Alias: `%s`.", key->aliases);
	fputs(" |\n", out);
}

static void config_md(FILE *out)
{
	int group = -1;

	fputs(config_md_head, out);
	for (int i = 0; i < EPF_CONF_KEYS; i++) {
		int g = (int)epf_conf_group_of((enum epf_conf_id)i);

		if (g != group)
			fprintf(out,
				"\n## %s\n\n"
				"| Option | Variable | Range | Default | Level | Meaning |\n"
				"|---|---|---|---|---|---|\n",
				epf_conf_group_title((enum epf_conf_group)g));
		group = g;
		config_row(out, epf_conf_key((enum epf_conf_id)i));
	}
	fputs("\n## Environment only\n\n| Variable | Meaning |\n|---|---|\n", out);
	for (const struct epf_conf_variable *v = epf_conf_variables(); v->name; v++) {
		fprintf(out, "| `%s` | ", v->name);
		cell(out, v->doc);
		fputs(" |\n", out);
	}
}

static void config_sample(FILE *out)
{
	int group = -1;

	fputs("# Sample configuration of ep-fabric: every setting with its default.\n"
	      "# Copy to " EPF_CONF_SYSTEM_FILE " or name it by --config, then take away the #\n"
	      "# in front of what you change.\n",
	      out);
	for (int i = 0; i < EPF_CONF_KEYS; i++) {
		const struct epf_conf_key *key = epf_conf_key((enum epf_conf_id)i);
		int g = (int)epf_conf_group_of((enum epf_conf_id)i);
		char range[160];

		if (key->type == EPF_CONF_SECRET)
			continue; /* not read from a file */
		if (g != group)
			fprintf(out, "\n## %s\n", epf_conf_group_title((enum epf_conf_group)g));
		group = g;
		epf_conf_range(key, range, sizeof(range));
		fprintf(out, "\n# %s\n# Range: %s.\n#%s = %s\n", key->doc, range, key->name,
			key->def);
	}
}

struct document {
	const char *name;
	void (*print)(FILE *out);
};

static const struct document documents[] = {
	{ "errors-md", errors_md },
	{ "config-md", config_md },
	{ "config-sample", config_sample },
};

static const struct document *find(const char *name)
{
	for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++) {
		if (!strcmp(documents[i].name, name))
			return &documents[i];
	}
	return NULL;
}

/* Return: the document as text to be freed, NULL when memory is short. */
static char *in_memory(const struct document *doc, size_t *len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	if (!out)
		return NULL;
	doc->print(out);
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}

static int check(const struct document *doc, const char *path)
{
	size_t len = 0, at = 0, line = 1;
	char *text = in_memory(doc, &len);
	FILE *f = fopen(path, "re");
	int c = EOF, rc = 1;

	if (!text || !f) {
		fprintf(stderr, "gen: %s: cannot be read; write it by: ninja docs\n", path);
		goto out;
	}
	while ((c = fgetc(f)) != EOF && at < len && c == (unsigned char)text[at]) {
		line += c == '\n';
		at++;
	}
	rc = c == EOF && at == len && !ferror(f) ? 0 : 1;
	if (rc)
		fprintf(stderr, "gen: %s:%zu: differs from the table; write it by: ninja docs\n",
			path, line);
out:
	if (f)
		fclose(f);
	free(text);
	return rc;
}

static int write_file(const struct document *doc, const char *path)
{
	FILE *f = fopen(path, "we");

	if (!f) {
		perror(path);
		return 1;
	}
	doc->print(f);
	if (fclose(f)) {
		perror(path);
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	const struct document *doc = argc > 1 ? find(argv[1]) : NULL;

	if (doc && argc == 2) {
		doc->print(stdout);
		return fflush(stdout) || ferror(stdout);
	}
	if (doc && argc == 4 && !strcmp(argv[2], "check"))
		return check(doc, argv[3]);
	if (doc && argc == 4 && !strcmp(argv[2], "write"))
		return write_file(doc, argv[3]);
	fputs("usage: gen errors-md|config-md|config-sample [check|write FILE]\n"
	      "prints the document made from the tables; check compares FILE with it\n",
	      stderr);
	return EXIT_USAGE;
}
