/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy driver's memory (fabric/gpu/copy_driver_memory.c) over the fake back-end: which addresses kernels of the program's context may be given. An address that only a
 * context of our own has mapped would fail every later call of the program.
 */
#include "fabric/gpu/copy_driver_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 1 << 21, OFFSET = 4096 };

static void test_memory_of_the_usual_context(void **state)
{
	const struct epf_copy_ops *own = &epf_copy_driver_own, *usual = &epf_copy_driver;
	struct epf_copy_handle h;
	uint64_t at, ours, theirs;
	void *memory;

	epf_copy_driver_choose("fake");
	assert_int_equal(usual->load(), 0);
	assert_int_equal(usual->mem_alloc(0, BYTES, &memory), 0);
	at = (uint64_t)(uintptr_t)memory;
	assert_true(epf_copy_driver_is_usual(at));
	assert_int_equal(usual->mem_export((uint8_t *)memory + OFFSET, BYTES - OFFSET, &h), 0);
	assert_int_equal(own->mem_import(&h, 0, &ours), 0);
	assert_int_equal(usual->mem_import(&h, 0, &theirs), 0);
	assert_true(ours != theirs && ours != at + OFFSET);
	assert_false(epf_copy_driver_is_usual(ours));
	assert_false(epf_copy_driver_is_usual(ours + BYTES - OFFSET - 1));
	assert_false(epf_copy_driver_is_usual(ours - OFFSET));
	assert_true(epf_copy_driver_is_usual(theirs));
	assert_true(epf_copy_driver_is_usual(at));
	own->mem_unimport(&h, ours);
	assert_true(epf_copy_driver_is_usual(ours));
	usual->mem_unimport(&h, theirs);
	close(h.fd);
	usual->mem_free(memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_memory_of_the_usual_context) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
