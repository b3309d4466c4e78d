/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recorded sysfs tree as a folder that a test may spoil, its map, and a plan made from it. Called by test_place*.c; the
 * programs get the interpreter, tree.py and the folder of the trees as arguments.
 */
#ifndef EPF_TESTS_UNIT_PLACE_RIG_H
#define EPF_TESTS_UNIT_PLACE_RIG_H

#include "fabric/base/conf.h"
#include "fabric/place/place.h"

struct place_rig {
	char dir[64];
	struct epf_conf conf; /* nic-device and cpu of it are used */
	struct epf_place_map map;
	struct epf_place_plan plan;
	uint32_t indices;
	const char *const *gpu_pci;
};

/* Takes PYTHON TREE.PY FOLDER; false: not so many. */
bool place_rig_args(int argc, char **argv);

/* A new rig with the tree of this name; NULL: an empty folder. */
void place_rig_init(struct place_rig *rig, const char *tree);
void place_rig_destroy(struct place_rig *rig);

/* Adds lines of a tree file. */
void place_rig_add(struct place_rig *rig, const char *lines);
/* Replaces a file's text; the file is found through links. */
void place_rig_put(struct place_rig *rig, const char *path, const char *text);
/* Removes a file, link or folder, and makes a link instead if target is not NULL. */
void place_rig_link(struct place_rig *rig, const char *path, const char *target);
/* Writes what `tree.py record` says of the rig's folder into another rig. */
void place_rig_copy(struct place_rig *from, struct place_rig *to);

void place_rig_set(struct place_rig *rig, const char *name, const char *value);
/* (Re-)reads the map and plans; the result of the first that fails. */
int place_rig_plan(struct place_rig *rig);
/* The same; it must succeed. */
void place_rig_replan(struct place_rig *rig);

/* Own rails of an index ("a:1,b:1"), and spares likewise; valid until the next call. */
const char *place_rig_own(const struct place_rig *rig, uint32_t index);
const char *place_rig_spares(const struct place_rig *rig, uint32_t index);
const struct epf_place_rail *place_rig_rail(const struct place_rig *rig, const char *name);
/* One of the notes of map or plan has this text; fails with all notes otherwise. */
void place_rig_assert_note(const struct place_rig *rig, const char *text);

#endif
