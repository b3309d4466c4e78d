/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the configuration share among themselves (conf.c, conf_parse.c, conf_load.c,
 * conf_cli.c, conf_print.c) and with their tests. Nobody else includes it.
 */
#ifndef EPF_FABRIC_BASE_CONF_PRIV_H
#define EPF_FABRIC_BASE_CONF_PRIV_H

#include "fabric/base/conf.h"

/* A value of any type on its way from a text to its field. */
union epf_conf_value {
	bool b;
	uint64_t u;
	int64_t i;
	double d;
	unsigned int word;
	char *text;
	struct epf_conf_list list;
	struct epf_conf_cpus cpus;
};

/**
 * epf_conf_parse() - read a text as a value of a row.
 * @where: origin of the text, for the error message.
 * @value: set on success; release it with epf_conf_release().
 *
 * Return: 0, or minus errno with epf_last_error() set. The message never holds a secret.
 */
int epf_conf_parse(const struct epf_conf_key *key, const char *where, const char *text,
		   union epf_conf_value *value);

/* epf_conf_release() - free what a value holds; a secret is wiped first. */
void epf_conf_release(const struct epf_conf_key *key, union epf_conf_value *value);

/* epf_conf_format() - the text of a value, as epf_conf_value(). */
char *epf_conf_format(const struct epf_conf_key *key, const union epf_conf_value *value);

/* epf_conf_fetch() and epf_conf_store() - move a value out of and into its field. */
void epf_conf_fetch(const struct epf_conf *conf, const struct epf_conf_key *key,
		    union epf_conf_value *value);
void epf_conf_store(struct epf_conf *conf, const struct epf_conf_key *key,
		    const union epf_conf_value *value);

/* epf_conf_number() - a bound or a number of a row as text, with its unit; 32 bytes are enough. */
void epf_conf_number(enum epf_conf_type type, uint64_t n, char *buf, size_t size);

/* epf_conf_find() - number of the row with this name ('_' as '-'), or -1. */
int epf_conf_find(const char *name);

/**
 * epf_conf_set_at() - epf_conf_set() for a row, with the origin in words.
 */
int epf_conf_set_at(struct epf_conf *conf, enum epf_conf_id id, const char *value,
		    enum epf_conf_source source, const char *where);

/**
 * epf_conf_nearest() - the known name most like an unknown one, by edit distance.
 * @variables: compare with EPF_ variable names, settings or not; else with option names.
 * @buf: set to the name as the user would write it; 64 bytes are enough.
 */
void epf_conf_nearest(const char *name, bool variables, char *buf, size_t size);

#endif
