/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration table as options of argp(3), to be a child of each tool's own parser. Called
 * by tools only. A secret is refused here: everybody on the machine can read a command line.
 */
#include "fabric/base/conf_priv.h"

#include "fabric/base/conf_cli.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OPTION_CONFIG 0x2000
#define OPTION_FIRST  0x2001 /* plus the row's number; outside the letters, so long names only */

#define A_BOOL      "yes|no"
#define A_UINT      "N"
#define A_POW2      "N"
#define A_AUTO      "N"
#define A_SIZE      "SIZE"
#define A_TIME      "TIME"
#define A_PROB      "P"
#define A_ENUM(set) "WORD"
#define A_STRING    "TEXT"
#define A_PATH      "PATH"
#define A_SECRET    "TEXT"
#define A_LIST      "A,B"
#define A_CPUS      "CPUS"

#define F_BOOL      OPTION_ARG_OPTIONAL
#define F_UINT      0
#define F_POW2      0
#define F_AUTO      0
#define F_SIZE      0
#define F_TIME      0
#define F_PROB      0
#define F_ENUM(set) 0
#define F_STRING    0
#define F_PATH      0
#define F_SECRET    OPTION_HIDDEN
#define F_LIST      0
#define F_CPUS      0

static const struct argp_option options[] = {
	{ .name = "config",
	  .key = OPTION_CONFIG,
	  .arg = "PATH",
	  .doc = "Configuration file; also EPF_CONFIG.",
	  .group = 1 },
#define G(id, title) { .doc = (title), .group = EPF_CONF_GROUP_##id + 2 },
#define K(field, option, type, def, min, max, level, aliases, fdoc) \
 { .name = (option),                                                \
   .key = OPTION_FIRST + EPF_CONF_ID_##field,                       \
   .arg = A_##type,                                                 \
   .flags = F_##type,                                               \
   .doc = (fdoc) },
#include "fabric/base/conf_keys.h"
	{ 0 },
};

_Static_assert(sizeof(options) == sizeof(((struct epf_conf_cli *)0)->option),
	       "epf_conf_cli has room for all options");

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct epf_conf *conf = state->input;
	const struct epf_conf_key *row;
	int rc = 0;

	if (key == OPTION_CONFIG) {
		char *copy = strdup(arg);

		if (!copy)
			return ENOMEM;
		free(conf->config_file);
		conf->config_file = copy;
		return 0;
	}
	if (key < OPTION_FIRST || key >= OPTION_FIRST + EPF_CONF_KEYS)
		return ARGP_ERR_UNKNOWN;
	row = epf_conf_key((enum epf_conf_id)(key - OPTION_FIRST));
	rc = epf_conf_set(conf, row->name, arg ? arg : "yes", EPF_CONF_CLI);
	if (rc)
		argp_failure(state, argp_err_exit_status, 0, "%s", epf_last_error());
	return -rc;
}

/* Adds to a row's help what its table row knows: range, default and variable. */
static char *help(int key, const char *text, void *input)
{
	const struct epf_conf_key *row;
	char range[160], var[64];
	char *out = NULL;

	if (key < OPTION_FIRST || key >= OPTION_FIRST + EPF_CONF_KEYS)
		return (char *)text;
	row = epf_conf_key((enum epf_conf_id)(key - OPTION_FIRST));
	epf_conf_range(row, range, sizeof(range));
	epf_conf_variable_name(row, var, sizeof(var));
	if (asprintf(&out, "%s [%s; default %s; %s]", text, range, *row->def ? row->def : "empty",
		     var) < 0)
		return (char *)text;
	return out;
}

const struct argp epf_conf_argp = {
	.options = options,
	.parser = parse,
	.help_filter = help,
};

void epf_conf_cli_init(struct epf_conf_cli *cli, unsigned int groups, bool expert)
{
	size_t n = 0;

	memset(cli, 0, sizeof(*cli));
	cli->argp = epf_conf_argp;
	for (const struct argp_option *o = options; o->name || o->doc; o++) {
		int id = o->key - OPTION_FIRST;
		int group = o->group - 2;

		if (o->name && o->key != OPTION_CONFIG)
			group = (int)epf_conf_group_of((enum epf_conf_id)id);
		if (group >= 0 && !(groups & (1u << group)))
			continue;
		cli->option[n] = *o;
		if (o->name && id >= 0 && !expert &&
		    epf_conf_key((enum epf_conf_id)id)->level == EPF_CONF_EXPERT)
			cli->option[n].flags |= OPTION_HIDDEN;
		n++;
	}
	cli->argp.options = cli->option;
}
