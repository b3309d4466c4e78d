/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two files of `ep-fabric nics` share.
 */
#ifndef EPF_TOOLS_FABRIC_NICS_H
#define EPF_TOOLS_FABRIC_NICS_H

#include <jansson.h>
#include <stdint.h>

struct epf_conf;

/**
 * epf_nics_place() - print, or put into a JSON object, the machine's RDMA devices and which serves which local index.
 * @sysfs: a tree; NULL: the machine's.
 * @indices: local indices; 0: one for each GPU.
 * @top: gets "sysfs", "devices", "gpus", "choices" and "notes"; NULL: text to standard output.
 *
 * Return: 0; minus errno with epf_last_error() set. When only the selection (nic-device) is at fault, devices and GPUs are there
 * all the same, and no choices.
 */
int epf_nics_place(const struct epf_conf *conf, const char *sysfs, uint32_t indices, json_t *top);

#endif
