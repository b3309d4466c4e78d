/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slurm's compact notations: lists of hosts and lists of task counts (sbatch(1), OUTPUT ENVIRONMENT VARIABLES). Pure functions.
 */
#ifndef EPF_BOOTSTRAP_SLURM_H
#define EPF_BOOTSTRAP_SLURM_H

#include <stddef.h>
#include <stdint.h>

/**
 * epf_slurm_first_host() - the first host of a Slurm list such as "n[07-09,12],gpu1".
 *
 * Return: 0; -EINVAL without an error text for a list that cannot be read or is too long.
 */
int epf_slurm_first_host(const char *list, char *out, size_t size);

/**
 * epf_slurm_tasks_on() - how many tasks a node has, from a list such as "4(x2),3".
 *
 * Return: the number, UINT32_MAX (EPF_RANK_UNKNOWN) when the list cannot be read or has no such node.
 */
uint32_t epf_slurm_tasks_on(const char *list, uint32_t node);

#endif
