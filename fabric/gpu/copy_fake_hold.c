/* SPDX-License-Identifier: Apache-2.0 */
/* What holds the fake GPU's calls and copies, for tests (copy.h, epf_copy_fake_hold()). Called by copy_fake.c and copy_fake_memory.c. */
#include "fabric/gpu/copy_fake_priv.h"

#include <stdbool.h>
#include <time.h>

static int held;
static uint32_t let_through, kept;

unsigned epf_copy_fake_held(void)
{
	return __atomic_load_n(&kept, __ATOMIC_ACQUIRE);
}

int epf_copy_fake_holds(void)
{
	return __atomic_load_n(&held, __ATOMIC_ACQUIRE);
}

void epf_copy_fake_hold(int hold)
{
	__atomic_store_n(&kept, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&let_through, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&held, hold, __ATOMIC_RELEASE);
}

void epf_copy_fake_let(unsigned calls)
{
	__atomic_fetch_add(&let_through, calls, __ATOMIC_RELEASE);
}

static void wait_while(int what, bool is_counted)
{
	struct timespec pause = { .tv_nsec = 1000000 };

	while (__atomic_load_n(&held, __ATOMIC_ACQUIRE) == what) {
		if (is_counted)
			__atomic_fetch_add(&kept, 1, __ATOMIC_RELEASE);
		is_counted = false;
		if (__atomic_load_n(&let_through, __ATOMIC_ACQUIRE)) {
			__atomic_fetch_sub(&let_through, 1, __ATOMIC_RELEASE);
			return;
		}
		nanosleep(&pause, NULL);
	}
}

/* A driver that lets a call wait (1, 4, 5), or a device that lets copies wait (2). */
void epf_copy_fake_wait(int what)
{
	wait_while(what, true);
}

void epf_copy_fake_wait_aside(int what)
{
	wait_while(what, false);
}
