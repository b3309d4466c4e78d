/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports as one NIC (ports.h), and what it takes to open one of them again. It must never know what kind of NIC they are.
 */
#include "fabric/nic/rails/ports.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* epf_rails_again.arg. */
struct ports {
	struct epf_rails_ports how;
	const struct epf_nic *first; /* its wakeup */

	struct {
		char device[64];
		uint32_t port;
	} port[EPF_NIC_LINKS];
};

static int open_one(const struct ports *p, uint32_t index, bool may_be_down, struct epf_nic **out)
{
	struct epf_place_candidate port = { p->port[index].device, p->port[index].port, true };

	return p->how.open(p->how.arg, &port, may_be_down, out);
}

static int open_again(void *arg, unsigned index, struct epf_nic **out)
{
	const struct ports *p = arg;
	struct epf_nic *nic = NULL;
	int rc = open_one(p, index, true, &nic);

	if (rc)
		return rc;
	p->how.share_wakeup(nic, p->first);
	*out = nic;
	return 0;
}

static void forget(void *arg)
{
	struct ports *p = arg;

	free(p->how.arg);
	free(p);
}

static struct ports *remember(const struct epf_rails_ports *how,
			      const struct epf_place_candidate *list, const uint32_t *order,
			      uint32_t n)
{
	struct ports *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->how = *how;
	for (uint32_t i = 0; i < n; i++) {
		const struct epf_place_candidate *port = &list[order[i]];

		snprintf(p->port[i].device, sizeof(p->port[i].device), "%s", port->device);
		p->port[i].port = port->port;
	}
	return p;
}

int epf_rails_ports_open(const struct epf_rails_ports *how, const struct epf_place_candidate *list,
			 const uint32_t *order, uint32_t n, struct epf_nic **out)
{
	struct epf_rails_again again = { .open = open_again, .free = forget };
	struct ports *p = remember(how, list, order, n);
	struct epf_nic *nics[EPF_NIC_LINKS] = { NULL };
	uint32_t done = 0;
	int rc = 0;

	if (!p)
		return epf_fail(EPF_R_NO_MEMORY, "NIC: %u ports", n);
	while (done < n && !rc) {
		rc = open_one(p, done, n > 1, &nics[done]);
		if (!rc)
			done++;
	}
	for (uint32_t i = 1; i < n && !rc; i++)
		how->share_wakeup(nics[i], nics[0]);
	if (!rc)
		rc = epf_nic_rails_open(nics, n, out);
	if (!rc) {
		p->first = nics[0];
		again.arg = p;
		epf_nic_rails_revivable(*out, &again);
		return 0;
	}
	for (; done; done--)
		nics[done - 1]->ops->close(nics[done - 1]);
	free(p);
	return rc;
}
