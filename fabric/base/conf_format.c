/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns configuration values, ranges and names back into text, in the form that conf_parse.c
 * reads. Called for messages, ep-fabric config, and the generated documents. It must never show
 * a secret or depend on the locale.
 */
#include "fabric/base/conf_priv.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct step {
	uint64_t factor;
	const char *name;
};

static const struct step time_steps[] = {
	{ 3600000000000, "h" }, { 1000000000, "s" }, { 1000000, "ms" }, { 1000, "us" }, { 1, "ns" },
};

static const struct step size_steps[] = {
	{ 1ull << 40, "TiB" },
	{ 1ull << 30, "GiB" },
	{ 1ull << 20, "MiB" },
	{ 1ull << 10, "KiB" },
	{ 1, "" },
};

static void quantity(const struct step *step, uint64_t n, char *buf, size_t size)
{
	if (!n) {
		snprintf(buf, size, "0");
		return;
	}
	while (n % step->factor)
		step++; /* the last factor is 1 */
	snprintf(buf, size, "%" PRIu64 "%s", n / step->factor, step->name);
}

void epf_conf_number(enum epf_conf_type type, uint64_t n, char *buf, size_t size)
{
	if (type == EPF_CONF_TIME)
		quantity(time_steps, n, buf, size);
	else if (type == EPF_CONF_SIZE)
		quantity(size_steps, n, buf, size);
	else
		snprintf(buf, size, "%" PRIu64, n);
}

void epf_conf_range(const struct epf_conf_key *key, char *buf, size_t size)
{
	char lo[32], hi[32];
	size_t used = 0;

	epf_conf_number(key->type, key->min, lo, sizeof(lo));
	epf_conf_number(key->type, key->max, hi, sizeof(hi));
	switch (key->type) {
	case EPF_CONF_BOOL:
		snprintf(buf, size, "yes, no");
		return;
	case EPF_CONF_ENUM:
		buf[0] = '\0';
		for (unsigned int i = 0; key->words[i] && used < size; i++)
			used += (size_t)snprintf(buf + used, size - used, "%s%s", i ? ", " : "",
						 key->words[i]);
		return;
	case EPF_CONF_STRING:
	case EPF_CONF_PATH:
	case EPF_CONF_SECRET:
		snprintf(buf, size, "%s .. %s bytes%s", lo, hi, *key->def ? "" : " or empty");
		return;
	case EPF_CONF_LIST:
		snprintf(buf, size, "%s .. %s items", lo, hi);
		return;
	case EPF_CONF_CPUS:
		snprintf(buf, size, "CPU %s .. %s", lo, hi);
		return;
	default:
		snprintf(buf, size, "%s .. %s%s%s", lo, hi,
			 key->type == EPF_CONF_POW2 ? ", a power of two" : "",
			 key->type == EPF_CONF_AUTO ? " or auto" : "");
		return;
	}
}

void epf_conf_variable_name(const struct epf_conf_key *key, char *buf, size_t size)
{
	snprintf(buf, size, "EPF_%s", key->name);
	for (char *c = buf; *c; c++)
		*c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

/* At most nine decimals go in, so nine decimals bring the same number back. */
static void probability(double d, char *buf, size_t size)
{
	uint64_t billionths = (uint64_t)(d * 1e9 + 0.5);
	size_t len;

	snprintf(buf, size, "%" PRIu64 ".%09" PRIu64, billionths / 1000000000,
		 billionths % 1000000000);
	len = strlen(buf);
	while (buf[len - 1] == '0')
		buf[--len] = '\0';
	if (buf[len - 1] == '.')
		buf[len - 1] = '\0';
}

static char *join_list(const struct epf_conf_list *list)
{
	size_t size = 1, used = 0;
	char *text;

	for (uint32_t i = 0; i < list->count; i++)
		size += strlen(list->item[i]) + 1;
	text = calloc(1, size);
	for (uint32_t i = 0; text && i < list->count; i++)
		used += (size_t)snprintf(text + used, size - used, "%s%s", i ? "," : "",
					 list->item[i]);
	return text;
}

/* Runs of three and more neighbours become a-b. */
static char *join_cpus(const struct epf_conf_cpus *cpus)
{
	size_t size = (size_t)cpus->count * 11 + 1, used = 0;
	char *text = calloc(1, size);

	for (uint32_t i = 0; text && i < cpus->count;) {
		uint32_t last = i;

		while (last + 1 < cpus->count && cpus->cpu[last + 1] == cpus->cpu[last] + 1)
			last++;
		if (last < i + 2)
			last = i;
		used += (size_t)snprintf(text + used, size - used, "%s%" PRIu32, used ? "," : "",
					 cpus->cpu[i]);
		if (last > i)
			used += (size_t)snprintf(text + used, size - used, "-%" PRIu32,
						 cpus->cpu[last]);
		i = last + 1;
	}
	return text;
}

char *epf_conf_format(const struct epf_conf_key *key, const union epf_conf_value *value)
{
	char buf[32];

	switch (key->type) {
	case EPF_CONF_BOOL:
		return strdup(value->b ? "yes" : "no");
	case EPF_CONF_AUTO:
		if (value->i < 0)
			return strdup("auto");
		epf_conf_number(key->type, (uint64_t)value->i, buf, sizeof(buf));
		return strdup(buf);
	case EPF_CONF_PROB:
		probability(value->d, buf, sizeof(buf));
		return strdup(buf);
	case EPF_CONF_ENUM:
		return strdup(key->words[value->word]);
	case EPF_CONF_STRING:
	case EPF_CONF_PATH:
		return strdup(value->text);
	case EPF_CONF_SECRET:
		return strdup(*value->text ? "(set)" : "");
	case EPF_CONF_LIST:
		return join_list(&value->list);
	case EPF_CONF_CPUS:
		return join_cpus(&value->cpus);
	default:
		epf_conf_number(key->type, value->u, buf, sizeof(buf));
		return strdup(buf);
	}
}
