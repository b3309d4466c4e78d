/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration (conf.h) as options of argp(3), for tools. */
#ifndef EPF_BASE_CONF_CLI_H
#define EPF_BASE_CONF_CLI_H

#include "fabric/base/conf.h"

#include <argp.h>
#include <stdbool.h>

/**
 * epf_conf_argp - all rows as options, and --config, to be a child of a tool's own argp.
 *
 * The parent's parser sets state->child_inputs[i] to the struct epf_conf at ARGP_KEY_INIT. A bad
 * value is reported by argp_failure(3), which ends the program with argp_err_exit_status unless
 * the tool passed ARGP_NO_EXIT; then argp_parse() returns the errno value.
 */
extern const struct argp epf_conf_argp;

/* Options of some groups only; see epf_conf_cli_init(). */
struct epf_conf_cli {
	struct argp argp;
	struct argp_option option[EPF_CONF_KEYS + EPF_CONF_GROUPS + 2];
};

/**
 * epf_conf_cli_init() - as epf_conf_argp, with some groups of rows.
 * @cli: filled in; @cli->argp is the child and must live as long as the parsing.
 * @groups: EPF_CONF_GROUP_BIT() of each group wanted, or EPF_CONF_GROUPS_ALL.
 * @expert: list EXPERT rows in --help too; they are accepted in any case.
 */
void epf_conf_cli_init(struct epf_conf_cli *cli, unsigned int groups, bool expert);

#endif
