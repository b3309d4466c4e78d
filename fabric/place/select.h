/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The setting nic-device, parsed: which devices and ports a job may use. Slow path.
 */
#ifndef EPF_FABRIC_PLACE_SELECT_H
#define EPF_FABRIC_PLACE_SELECT_H

#include "fabric/base/conf.h"

#include <stdbool.h>
#include <stdint.h>

/* A parsed nic-device. Items point into text. */
struct epf_place_select {
	struct epf_place_select_item {
		char *name;
		uint32_t port; /* 0: all */
		bool used;     /* fitted something */
	} * item;

	char **text;
	uint32_t items;
	bool is_exact;
	bool is_exclusion;
};

/* Parses the setting; @list may be NULL. Returns 0, -EINVAL with epf_last_error() set, or -ENOMEM. */
int epf_place_select_parse(const struct epf_conf_list *list, struct epf_place_select *out);
void epf_place_select_destroy(struct epf_place_select *select);
/* Returns true if the selection admits the port; an empty selection admits all. Marks the item that matched as used. */
bool epf_place_select_fits(struct epf_place_select *select, const char *name, uint32_t port);

#endif
