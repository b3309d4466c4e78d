/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dynamic symbols of an ELF file (shim_elf.h): 64-bit little-endian x86-64, by its section headers, as elf(5) has them. A file that lies
 * about its offsets is refused, never followed.
 */
#include "tools/cli/shim_elf.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct image {
	const unsigned char *at;
	size_t bytes;
};

static const char *const served[] = {
	"nvshmem_align",
	"nvshmem_barrier_all",
	"nvshmem_free",
	"nvshmem_my_pe",
	"nvshmem_selected_device_transport",
	"nvshmem_team_destroy",
	"nvshmem_team_split_strided",
	"nvshmemid_hostlib_finalize",
	"nvshmemid_hostlib_init_attr",
	"nvshmemid_init_status",
	"nvshmemx_barrier_all_on_stream",
	"nvshmemx_get_uniqueid",
	"nvshmemx_set_attr_uniqueid_args",
};

/* Copies out of the image, so that alignment is no question; false outside of it. */
static bool get(const struct image *f, size_t offset, void *out, size_t bytes)
{
	if (offset > f->bytes || bytes > f->bytes - offset)
		return false;
	memcpy(out, f->at + offset, bytes);
	return true;
}

/* A string that ends inside its table; NULL. */
static const char *string(const struct image *f, const Elf64_Shdr *table, size_t offset)
{
	if (table->sh_offset > f->bytes || table->sh_size > f->bytes - table->sh_offset ||
	    offset >= table->sh_size)
		return NULL;
	return memchr(f->at + table->sh_offset + offset, 0, table->sh_size - offset)
		       ? (const char *)f->at + table->sh_offset + offset
		       : NULL;
}

static void count(struct shim_elf *out, const char *name)
{
	size_t length = strlen(out->unserved);

	if (strncmp(name, "nvshmem", 7) != 0)
		return;
	out->wanted++;
	for (size_t i = 0; i < sizeof(served) / sizeof(served[0]); i++)
		if (strcmp(name, served[i]) == 0) {
			out->served++;
			return;
		}
	out->left_over++;
	snprintf(out->unserved + length, sizeof(out->unserved) - length, "%s%s", length ? ", " : "",
		 name);
	/* A damaged file's names are any bytes, and are printed. */
	for (char *c = out->unserved + length; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
}

static bool read_symbols(const struct image *f, const Elf64_Ehdr *h, const Elf64_Shdr *symbols,
			 struct shim_elf *out)
{
	Elf64_Shdr names;

	if (symbols->sh_link >= h->e_shnum ||
	    !get(f, h->e_shoff + (size_t)symbols->sh_link * sizeof(names), &names, sizeof(names)))
		return false;
	for (size_t i = 0; i < symbols->sh_size / sizeof(Elf64_Sym); i++) {
		const char *name;
		Elf64_Sym s;

		if (symbols->sh_offset > f->bytes ||
		    !get(f, symbols->sh_offset + i * sizeof(s), &s, sizeof(s)))
			return false;
		if (s.st_shndx != SHN_UNDEF || s.st_name == 0)
			continue;
		name = string(f, &names, s.st_name);
		if (!name)
			return false;
		count(out, name);
	}
	return true;
}

static const char *read_image(const struct image *f, struct shim_elf *out)
{
	Elf64_Ehdr h;

	if (!get(f, 0, &h, sizeof(h)) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
		return "is no ELF file";
	if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB ||
	    h.e_machine != EM_X86_64)
		return "is not made for x86-64";
	if (h.e_shentsize != sizeof(Elf64_Shdr) || h.e_shoff > f->bytes)
		return "has no section headers";
	for (unsigned i = 0; i < h.e_shnum; i++) {
		Elf64_Shdr s;

		if (!get(f, h.e_shoff + (size_t)i * sizeof(s), &s, sizeof(s)))
			return "is cut short";
		if (s.sh_type == SHT_DYNAMIC)
			out->is_dynamic = true;
		if (s.sh_type == SHT_DYNSYM && !read_symbols(f, &h, &s, out))
			return "has a damaged table of symbols";
	}
	return NULL;
}

int shim_elf_read(const char *path, struct shim_elf *out, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct shim_elf found = { 0 };
	const char *wrong;
	struct image f;
	struct stat st;
	void *at;

	if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		snprintf(text, size, "%s cannot be read: %s", path,
			 fd < 0 ? strerror(errno) : "no file");
		if (fd >= 0)
			close(fd);
		return -1;
	}
	f.bytes = (size_t)st.st_size;
	at = f.bytes ? mmap(NULL, f.bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
	close(fd);
	if (at == MAP_FAILED) {
		snprintf(text, size, "%s cannot be read", path);
		return -1;
	}
	f.at = at;
	wrong = read_image(&f, &found);
	munmap(at, f.bytes);
	if (wrong) {
		snprintf(text, size, "%s %s", path, wrong);
		return -1;
	}
	*out = found;
	return 0;
}
