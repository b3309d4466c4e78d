/* SPDX-License-Identifier: Apache-2.0 */
/* The usual side of an adder (adder.h): the thread that launches there. Functions are called by the copier's thread and accept NULL, where no batch goes to that side. */
#ifndef EPF_FABRIC_GPU_ADDER_USUAL_H
#define EPF_FABRIC_GPU_ADDER_USUAL_H

#include "fabric/gpu/adder_side.h"

struct epf_adder_usual;

/* Starts the thread, which opens the side. own: the other side. NULL: no memory, no thread. */
struct epf_adder_usual *epf_adder_usual_start(const struct epf_adder_ops *ops, int device,
					      const struct epf_adder_side *own);
/* Ends the thread; waits for its launch. */
void epf_adder_usual_stop(struct epf_adder_usual *u);
/* Closes the side, after stop. */
void epf_adder_usual_free(struct epf_adder_usual *u);
/* The word of claims; 0: the side is not open. From the first other answer on, every batch needs it. */
uint64_t epf_adder_usual_claim(const struct epf_adder_usual *u);
/* Returns true if the thread launches the batch; false: it is still in its last launch, or the side has failed. */
bool epf_adder_usual_give(struct epf_adder_usual *u, const struct epf_adder_batch *batch);
/* As done() of struct epf_adder_ops. */
uint64_t epf_adder_usual_done(const struct epf_adder_usual *u);
/* Returns -errno with a reason if the side failed and may have claimed batch `number`, else 0. */
int epf_adder_usual_lost(const struct epf_adder_usual *u, uint64_t number);

#endif
