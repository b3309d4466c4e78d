/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two halves of the embedded back-end: embedded.c (what backend.h asks for) calls embedded_start.c (how the engine is made).
 * Nobody else includes this.
 */
#ifndef EPF_FABRIC_CLIENT_EMBEDDED_H
#define EPF_FABRIC_CLIENT_EMBEDDED_H

#include "fabric/client/lib.h"

/* Opens statistics and NIC, makes the core, the signals and the wakeup of ep. What was made before a failure is freed by close. */
int epf_embedded_open(struct epf *ep);

/* Gives the statistics the number of this run of the job, the same at all its ranks: a digest of what rank 0 says of itself at the join. */
void epf_embedded_identify(struct epf *ep, const struct epf_blob *rank0);

/* The job is connected: notes what waits need of the peers page, and starts the
 * thread that runs the core (with progress=thread). Returns when requests reach it. Sets ep->kick. */
int epf_embedded_start(struct epf *ep);

/* has_told and engine_pid of backend.h. The engine ends with this process, so what peers are to know must be on its way before. */
bool epf_embedded_has_told(struct epf *ep);
uint32_t epf_embedded_engine_pid(const struct epf *ep);

#endif
