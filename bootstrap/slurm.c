/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two compact notations in Slurm's variables (sbatch(1), OUTPUT ENVIRONMENT VARIABLES): lists
 * of hosts and lists of task counts. Called by rank_env.c. Pure functions; text that does not
 * follow the notation is refused, never half understood.
 */
#include "bootstrap/slurm.h"

#include "bootstrap/net.h"

#include <errno.h>
#include <string.h>

/* The first name in "[07-09,12]": the characters up to ',' or '-'. Returns what follows ']'. */
static const char *first_in_bracket(const char *p, char *out, size_t size, size_t *at)
{
	size_t n = strspn(p, "0123456789");
	const char *end = p + strcspn(p, "[]");

	if (!n || *end != ']' || !strchr("-,]", p[n]) || *at + n >= size)
		return NULL;
	memcpy(out + *at, p, n);
	*at += n;
	return end + 1;
}

int epf_slurm_first_host(const char *list, char *out, size_t size)
{
	const char *p = list;
	char host[EPF_NET_HOST_MAX];
	size_t at = 0;

	while (*p && *p != ',') {
		if (*p == '[') {
			p = first_in_bracket(p + 1, host, sizeof(host), &at);
			if (!p)
				return -EINVAL;
			continue;
		}
		/* What a host name is made of; blanks and brackets are not. */
		if (*p == ']' || (unsigned char)*p <= ' ' || at + 1 >= sizeof(host))
			return -EINVAL;
		host[at++] = *p++;
	}
	if (!at || at >= size)
		return -EINVAL;
	memcpy(out, host, at);
	out[at] = 0;
	return 0;
}

static const char *read_number(const char *p, uint32_t *value)
{
	uint64_t v = 0;

	if (*p < '0' || *p > '9')
		return NULL;
	while (*p >= '0' && *p <= '9' && v < UINT32_MAX)
		v = v * 10 + (uint64_t)(*p++ - '0');
	if (v >= UINT32_MAX)
		return NULL;
	*value = (uint32_t)v;
	return p;
}

uint32_t epf_slurm_tasks_on(const char *list, uint32_t node)
{
	const char *p = list;

	while (p && *p) {
		uint32_t tasks, nodes = 1;

		p = read_number(p, &tasks);
		if (p && p[0] == '(' && p[1] == 'x') {
			p = read_number(p + 2, &nodes);
			p = p && *p == ')' ? p + 1 : NULL;
		}
		if (!p || (*p && *p != ','))
			return UINT32_MAX;
		if (node < nodes)
			return tasks;
		node -= nodes;
		p += *p == ',';
	}
	return UINT32_MAX;
}
