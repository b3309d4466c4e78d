/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user's selection of devices, nic-device, in the syntax of NCCL_IB_HCA: name prefixes with commas, each with ":port" if wanted;
 * '=' in front of the first: whole names; '^' before all: every device but these. Called by epf_place_choose().
 */
#include "fabric/place/select.h"
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/place/place_priv.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Takes "name" or "name:port" apart; text is cut at the colon. */
static int parse_item(char *text, struct epf_place_select_item *out)
{
	char *colon = strrchr(text, ':'), *end = text + strlen(text);
	uint64_t port = 0;

	while (end > text && isspace((unsigned char)end[-1]))
		*--end = '\0';
	if (colon && (epf_place_number(colon + 1, 10, UINT8_MAX, &port) || !port))
		return -EINVAL;
	if (colon)
		*colon = '\0';
	out->name = text;
	out->port = (uint32_t)port;
	out->used = false;
	return *text && !strchr(text, ':') ? 0 : -EINVAL;
}

static char *skip_blanks(char *text)
{
	while (isspace((unsigned char)*text))
		text++;
	return text;
}

int epf_place_select_parse(const struct epf_conf_list *list, struct epf_place_select *out)
{
	struct epf_place_select select = { 0 };
	int rc = 0;

	*out = select;
	if (!list || !list->count)
		return 0;
	select.item = calloc(list->count, sizeof(*select.item));
	select.text = calloc(list->count, sizeof(*select.text));
	if (!select.item || !select.text)
		rc = epf_place_no_memory();
	for (uint32_t i = 0; !rc && i < list->count; i++) {
		char *text = select.text[i] = strdup(list->item[i]);

		select.items++;
		if (!text) {
			rc = epf_place_no_memory();
			break;
		}
		text = skip_blanks(text);
		if (i == 0 && *text == '^') {
			select.is_exclusion = true;
			text++;
		}
		if (i == 0 && *text == '=') {
			select.is_exact = true;
			text++;
		}
		if (parse_item(skip_blanks(text), &select.item[i]))
			rc = epf_fail(EPF_R_PLACE_SELECT,
				      "nic-device: '%s' is no device name with "
				      "or without :PORT",
				      list->item[i]);
	}
	if (rc) {
		epf_place_select_destroy(&select);
		return rc;
	}
	*out = select;
	return 0;
}

void epf_place_select_destroy(struct epf_place_select *select)
{
	for (uint32_t i = 0; i < select->items; i++)
		free(select->text[i]);
	free(select->text);
	free(select->item);
	memset(select, 0, sizeof(*select));
}

bool epf_place_select_fits(struct epf_place_select *select, const char *name, uint32_t port)
{
	bool fits = false;

	/* No early end: every item that fits is marked as used. */
	for (uint32_t i = 0; i < select->items; i++) {
		struct epf_place_select_item *item = &select->item[i];
		bool same = select->is_exact ? !strcmp(name, item->name)
					     : !strncmp(name, item->name, strlen(item->name));

		if (same && (!item->port || item->port == port)) {
			item->used = true;
			fits = true;
		}
	}
	return !select->items || fits != select->is_exclusion;
}
