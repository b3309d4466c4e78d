/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of this folder.
 */
#ifndef EPF_FABRIC_PLACE_PLACE_PRIV_H
#define EPF_FABRIC_PLACE_PLACE_PRIV_H

#include "fabric/place/place.h"

#include <stddef.h>

/* A CPU number from here on is nonsense: no kernel counts that far. It bounds the loops over ranges. */
#define EPF_PLACE_CPU_LIMIT 1048576u

/* Room for one more of size bytes behind the count there are. NULL: no memory, array is unchanged. */
void *epf_place_grow(void *array, uint32_t count, size_t size);

/* Adds a line to a list of notes, control characters replaced. Short memory loses the note. */
void epf_place_note(char ***note, uint32_t *notes, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#define epf_place_note_map(map, ...) epf_place_note(&(map)->note, &(map)->notes, __VA_ARGS__)

/* -ENOMEM with a reason. */
int epf_place_no_memory(void);

#define EPF_PLACE_TEXT_BYTES 4097 /* a sysfs file is a page at most */

/* Builds a path of PATH_MAX bytes; -ENAMETOOLONG. */
int epf_place_join(char *path, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Reads FOLDER/NAME into EPF_PLACE_TEXT_BYTES, without trailing white space. Minus errno; nothing is noted. */
int epf_place_text(const char *folder, const char *name, char *text);
/* As epf_place_text(); a failure is noted as of `what`, with what it costs. */
int epf_place_text_noted(struct epf_place_map *map, const char *what, const char *folder,
			 const char *name, char *text, const char *cost);
void epf_place_nonsense(struct epf_place_map *map, const char *what, const char *name,
			const char *text, const char *cost);
bool epf_place_is_printable(const char *name);

struct epf_place_names {
	char **name;
	uint32_t count;
};

/* The names in ROOT/FOLDER that begin with prefix, sorted with numbers in order. Only -ENOMEM is an error. */
int epf_place_names(struct epf_place_map *map, const char *folder, const char *prefix,
		    struct epf_place_names *out);
void epf_place_names_free(struct epf_place_names *names);
/* A file with a CPU list; only -ENOMEM is an error. */
int epf_place_read_cpus(struct epf_place_map *map, const char *what, const char *folder,
			const char *name, struct epf_place_cpus *out);
/* The resolved path of ROOT/LINK; -EXDEV when it leads out of the root. */
int epf_place_resolve(struct epf_place_map *map, const char *link, char *path);

int epf_place_read_nics(struct epf_place_map *map);
int epf_place_read_gpus(struct epf_place_map *map);

/* A kernel CPU list, "0-47,96-143" or empty. -EINVAL, -ENOMEM; out is written on success only. */
int epf_place_cpus_parse(const char *text, struct epf_place_cpus *out);
bool epf_place_cpus_has(const struct epf_place_cpus *cpus, uint32_t cpu);

/* A whole number in this base that is all of text, at most max. -EINVAL. */
int epf_place_number(const char *text, int base, uint64_t max, uint64_t *out);

/* How far apart; *hops: links between the two for EPF_PLACE_SWITCH, else 0. */
enum epf_place_near epf_place_distance(const struct epf_place_spot *a,
				       const struct epf_place_spot *b, uint32_t *hops);
/* The lowest bridge or root above both, NULL: none. */
const char *epf_place_common(const struct epf_place_spot *a, const struct epf_place_spot *b);

/* A unit is what rails are dealt out to: a GPU, or without GPUs a local index. */
struct epf_place_unit {
	const struct epf_place_spot *spot; /* NULL: no GPU */
	uint8_t *is_home; /* for each rail: dealt to this unit, whether up or down */
	uint8_t *is_own;  /* for each rail: to be used now */
	uint32_t sharers; /* units that shared the same nearest rails with it, itself included */
	uint32_t shared;  /* those rails */
};

/* Deals the rails that have a number to units, and from those chooses what each uses now; sets users. -ENOMEM. */
int epf_place_deal(struct epf_place_plan *plan, struct epf_place_unit *unit, uint32_t units);

/* Recommends node and CPU of each numbered rail. */
void epf_place_cores(const struct epf_place_opts *opts, struct epf_place_plan *plan);
/* A CPU out of these for the take-th of those that want one; -1: none of them may be used. */
int64_t epf_place_core(const struct epf_place_opts *opts, const struct epf_place_cpus *near,
		       uint32_t take);
/* The CPUs near a spot, or else those of its node, or else all that are online. */
const struct epf_place_cpus *epf_place_cpus_near(const struct epf_place_map *map,
						 const struct epf_place_spot *spot);
/* NULL: not known. */
const struct epf_place_node *epf_place_node_of(const struct epf_place_map *map, int32_t node);

/* The reason of a choice, malloced; NULL: no memory. */
char *epf_place_why(const struct epf_place_opts *opts, const struct epf_place_plan *plan,
		    const struct epf_place_choice *choice, const struct epf_place_unit *unit);

#endif
