/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/nccl's declarations against NCCL's own headers, member by member: place and size. Not compiled by the build, which needs no NCCL:
 * tools/frameworks/nccl_clients.py layouts compiles it, once with the headers of NCCL's library, once (EXAMPLES) with those that its example plug-ins bring.
 */
#include "tools/nccl/abi_gin.h"
#include "tools/nccl/abi_gpi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef EXAMPLES
# include "gin.h"
#else
# include "nccl_net.h"

# include "gin/gin_v13.h"
# include "gin/gin_v14.h"
# include "nccl_device/gin/gpi/gin_gpi_device_host_common.h"
# include "rma/rma_v14.h"
#endif

#define SAME(ours, member, theirs, name)                                                   \
 _Static_assert(offsetof(struct ours, member) == offsetof(theirs, name) &&                 \
			sizeof(((struct ours *)0)->member) == sizeof(((theirs *)0)->name), \
		#ours ": " #member)
#define WHOLE(ours, theirs) _Static_assert(sizeof(struct ours) == sizeof(theirs), #ours)

#ifndef EXAMPLES

# define PROPERTIES(v)                                                                        \
  WHOLE(epf_nccl_properties_##v, ncclNetProperties_##v##_t);                                  \
  SAME(epf_nccl_properties_##v, name, ncclNetProperties_##v##_t, name);                       \
  SAME(epf_nccl_properties_##v, pci_path, ncclNetProperties_##v##_t, pciPath);                \
  SAME(epf_nccl_properties_##v, guid, ncclNetProperties_##v##_t, guid);                       \
  SAME(epf_nccl_properties_##v, ptr_support, ncclNetProperties_##v##_t, ptrSupport);          \
  SAME(epf_nccl_properties_##v, reg_is_global, ncclNetProperties_##v##_t, regIsGlobal);       \
  SAME(epf_nccl_properties_##v, force_flush, ncclNetProperties_##v##_t, forceFlush);          \
  SAME(epf_nccl_properties_##v, speed_mbps, ncclNetProperties_##v##_t, speed);                \
  SAME(epf_nccl_properties_##v, port, ncclNetProperties_##v##_t, port);                       \
  SAME(epf_nccl_properties_##v, latency_us, ncclNetProperties_##v##_t, latency);              \
  SAME(epf_nccl_properties_##v, max_comms, ncclNetProperties_##v##_t, maxComms);              \
  SAME(epf_nccl_properties_##v, max_recvs, ncclNetProperties_##v##_t, maxRecvs);              \
  SAME(epf_nccl_properties_##v, device_type, ncclNetProperties_##v##_t, netDeviceType);       \
  SAME(epf_nccl_properties_##v, device_version, ncclNetProperties_##v##_t, netDeviceVersion); \
  SAME(epf_nccl_properties_##v, vdevice, ncclNetProperties_##v##_t, vProps);                  \
  SAME(epf_nccl_properties_##v, max_p2p_bytes, ncclNetProperties_##v##_t, maxP2pBytes);       \
  SAME(epf_nccl_properties_##v, max_coll_bytes, ncclNetProperties_##v##_t, maxCollBytes)
PROPERTIES(v10);
PROPERTIES(v11);
PROPERTIES(v12);
SAME(epf_nccl_properties_v11, max_multi_request, ncclNetProperties_v11_t, maxMultiRequestSize);
SAME(epf_nccl_properties_v12, max_multi_request, ncclNetProperties_v12_t, maxMultiRequestSize);
SAME(epf_nccl_properties_v12, rail, ncclNetProperties_v12_t, railId);
SAME(epf_nccl_properties_v12, plane, ncclNetProperties_v12_t, planeId);

# define NET(v)                                                           \
  WHOLE(epf_nccl_net_##v, ncclNet_##v##_t);                               \
  SAME(epf_nccl_net_##v, init, ncclNet_##v##_t, init);                    \
  SAME(epf_nccl_net_##v, devices, ncclNet_##v##_t, devices);              \
  SAME(epf_nccl_net_##v, get_properties, ncclNet_##v##_t, getProperties); \
  SAME(epf_nccl_net_##v, listen, ncclNet_##v##_t, listen);                \
  SAME(epf_nccl_net_##v, connect, ncclNet_##v##_t, connect);              \
  SAME(epf_nccl_net_##v, accept, ncclNet_##v##_t, accept);                \
  SAME(epf_nccl_net_##v, reg_mr, ncclNet_##v##_t, regMr);                 \
  SAME(epf_nccl_net_##v, reg_mr_dmabuf, ncclNet_##v##_t, regMrDmaBuf);    \
  SAME(epf_nccl_net_##v, dereg_mr, ncclNet_##v##_t, deregMr);             \
  SAME(epf_nccl_net_##v, isend, ncclNet_##v##_t, isend);                  \
  SAME(epf_nccl_net_##v, irecv, ncclNet_##v##_t, irecv);                  \
  SAME(epf_nccl_net_##v, iflush, ncclNet_##v##_t, iflush);                \
  SAME(epf_nccl_net_##v, test, ncclNet_##v##_t, test);                    \
  SAME(epf_nccl_net_##v, close_send, ncclNet_##v##_t, closeSend);         \
  SAME(epf_nccl_net_##v, close_recv, ncclNet_##v##_t, closeRecv);         \
  SAME(epf_nccl_net_##v, close_listen, ncclNet_##v##_t, closeListen);     \
  SAME(epf_nccl_net_##v, get_device_mr, ncclNet_##v##_t, getDeviceMr);    \
  SAME(epf_nccl_net_##v, irecv_consumed, ncclNet_##v##_t, irecvConsumed); \
  SAME(epf_nccl_net_##v, make_vdevice, ncclNet_##v##_t, makeVDevice)
NET(v10);
NET(v11);
NET(v12);
SAME(epf_nccl_net_v11, finalize, ncclNet_v11_t, finalize);
SAME(epf_nccl_net_v12, finalize, ncclNet_v12_t, finalize);
SAME(epf_nccl_net_v11, set_attributes, ncclNet_v11_t, setNetAttr);
SAME(epf_nccl_net_v12, set_attributes, ncclNet_v12_t, setNetAttr);
_Static_assert(EPF_NCCL_HOST == NCCL_PTR_HOST && EPF_NCCL_CUDA == NCCL_PTR_CUDA, "kinds of memory");

#endif

#define GROUPS(ours, theirs)                            \
 WHOLE(ours, theirs);                                   \
 SAME(ours, init, theirs, init);                        \
 SAME(ours, devices, theirs, devices);                  \
 SAME(ours, get_properties, theirs, getProperties);     \
 SAME(ours, listen, theirs, listen);                    \
 SAME(ours, connect, theirs, connect);                  \
 SAME(ours, create_context, theirs, createContext);     \
 SAME(ours, reg_mr_sym, theirs, regMrSym);              \
 SAME(ours, reg_mr_sym_dmabuf, theirs, regMrSymDmaBuf); \
 SAME(ours, dereg_mr_sym, theirs, deregMrSym);          \
 SAME(ours, destroy_context, theirs, destroyContext);   \
 SAME(ours, close_coll, theirs, closeColl);             \
 SAME(ours, close_listen, theirs, closeListen);         \
 SAME(ours, iput, theirs, iput);                        \
 SAME(ours, iput_signal, theirs, iputSignal);           \
 SAME(ours, test, theirs, test);                        \
 SAME(ours, query_last_error, theirs, queryLastError);  \
 SAME(ours, finalize, theirs, finalize)

#ifdef EXAMPLES
GROUPS(epf_nccl_gin_v11, ncclGin_v11_t);
GROUPS(epf_nccl_gin_v12, ncclGin_v12_t);
#else
GROUPS(epf_nccl_gin_v13, ncclGin_v13_t);
GROUPS(epf_nccl_rma_v14, ncclRma_v14_t);
SAME(epf_nccl_gin_v13, iget, ncclGin_v13_t, iget);
SAME(epf_nccl_gin_v13, iflush, ncclGin_v13_t, iflush);
SAME(epf_nccl_gin_v13, progress, ncclGin_v13_t, ginProgress);
SAME(epf_nccl_rma_v14, iget, ncclRma_v14_t, iget);
SAME(epf_nccl_rma_v14, iflush, ncclRma_v14_t, iflush);
SAME(epf_nccl_rma_v14, progress, ncclRma_v14_t, rmaProgress);
WHOLE(epf_nccl_gin_config_v13, ncclGinConfig_v13_t);
SAME(epf_nccl_gin_config_v13, contexts, ncclGinConfig_v13_t, nContexts);
SAME(epf_nccl_gin_config_v13, queue_depth, ncclGinConfig_v13_t, queueDepth);
WHOLE(epf_nccl_gin_v14, ncclGin_v14_t);
SAME(epf_nccl_gin_v14, init, ncclGin_v14_t, init);
SAME(epf_nccl_gin_v14, devices, ncclGin_v14_t, devices);
SAME(epf_nccl_gin_v14, get_gin_properties, ncclGin_v14_t, getGinProperties);
SAME(epf_nccl_gin_v14, get_properties, ncclGin_v14_t, getProperties);
SAME(epf_nccl_gin_v14, listen, ncclGin_v14_t, listen);
SAME(epf_nccl_gin_v14, connect, ncclGin_v14_t, connect);
SAME(epf_nccl_gin_v14, create_context, ncclGin_v14_t, createContext);
SAME(epf_nccl_gin_v14, reg_mr_sym, ncclGin_v14_t, regMrSym);
SAME(epf_nccl_gin_v14, reg_mr_sym_dmabuf, ncclGin_v14_t, regMrSymDmaBuf);
SAME(epf_nccl_gin_v14, dereg_mr_sym, ncclGin_v14_t, deregMrSym);
SAME(epf_nccl_gin_v14, destroy_context, ncclGin_v14_t, destroyContext);
SAME(epf_nccl_gin_v14, close_coll, ncclGin_v14_t, closeColl);
SAME(epf_nccl_gin_v14, close_listen, ncclGin_v14_t, closeListen);
SAME(epf_nccl_gin_v14, progress, ncclGin_v14_t, ginProgress);
SAME(epf_nccl_gin_v14, query_last_error, ncclGin_v14_t, queryLastError);
SAME(epf_nccl_gin_v14, finalize, ncclGin_v14_t, finalize);
WHOLE(epf_nccl_gin_config_v14, ncclGinConfig_v14_t);
SAME(epf_nccl_gin_config_v14, signals, ncclGinConfig_v14_t, nSignals);
SAME(epf_nccl_gin_config_v14, counters, ncclGinConfig_v14_t, nCounters);
SAME(epf_nccl_gin_config_v14, contexts, ncclGinConfig_v14_t, nContexts);
SAME(epf_nccl_gin_config_v14, queue_depth, ncclGinConfig_v14_t, queueDepth);
SAME(epf_nccl_gin_config_v14, backend_version, ncclGinConfig_v14_t, backendVersion);
WHOLE(epf_nccl_gin_properties_v14, ncclGinProperties_v14_t);
SAME(epf_nccl_gin_properties_v14, has_va_signals, ncclGinProperties_v14_t, supportsVASignals);
WHOLE(epf_nccl_device_handle, ncclNetDeviceHandle_v11_t);
SAME(epf_nccl_device_handle, type, ncclNetDeviceHandle_v11_t, netDeviceType);
SAME(epf_nccl_device_handle, handle, ncclNetDeviceHandle_v11_t, handle);
SAME(epf_nccl_device_handle, bytes, ncclNetDeviceHandle_v11_t, size);
SAME(epf_nccl_device_handle, needs_progress, ncclNetDeviceHandle_v11_t, needsProxyProgress);
/* What kernels read and write. The bits of a request's words are fields of a union, which no assertion reaches. */
WHOLE(epf_gpi_entry, gpi_gfd_t);
WHOLE(epf_gpi_channel, gpi_gpu_channel_t);
SAME(epf_gpi_channel, counters, gpi_gpu_channel_t, gpu_counter_ptr_);
SAME(epf_gpi_channel, signals, gpi_gpu_channel_t, gpu_signal_ptr_);
SAME(epf_gpi_channel, queue, gpi_gpu_channel_t, queue_.gpu_memic_ptr);
SAME(epf_gpi_channel, pushed, gpi_gpu_channel_t, queue_.pi_);
SAME(epf_gpi_channel, taken, gpi_gpu_channel_t, queue_.ci_);
SAME(epf_gpi_channel, taken_seen, gpi_gpu_channel_t, queue_.ci_value_);
SAME(epf_gpi_channel, log2_slots, gpi_gpu_channel_t, queue_.log_depth);
_Static_assert(sizeof(gpi_counter_t) == EPF_GPI_STRIDE && sizeof(gpi_signal_t) == EPF_GPI_STRIDE &&
		       NCCL_GIN_GPI_VERSION == EPF_GPI_VERSION &&
		       EPF_GPI_COUNTER_ERROR == GPI_COUNTER_FLAG_ERROR &&
		       (int)NCCL_NET_DEVICE_GIN_GPI == (int)EPF_NCCL_DEVICE_GIN_GPI,
	       "words and constants of kernels");
_Static_assert(EPF_GPI_COUNTS == GPI_GFD_DATA_OP_WITH_COUNTER_COUNTED &&
		       (int)EPF_GPI_READ == (int)GPI_GFD_DATA_OP_READ &&
		       (int)EPF_GPI_WRITE == (int)GPI_GFD_DATA_OP_WRITE &&
		       (int)EPF_GPI_WRITE_ADD == (int)GPI_GFD_DATA_OP_WRITE_SIGNAL_ADD &&
		       (int)EPF_GPI_WRITE_INC == (int)GPI_GFD_DATA_OP_WRITE_SIGNAL_COUNTED &&
		       (int)EPF_GPI_INLINE == (int)GPI_GFD_DATA_OP_WRITE_INLINE &&
		       (int)EPF_GPI_INLINE_ADD == (int)GPI_GFD_DATA_OP_WRITE_INLINE_SIGNAL_ADD &&
		       (int)EPF_GPI_INLINE_INC ==
			       (int)GPI_GFD_DATA_OP_WRITE_INLINE_SIGNAL_COUNTED &&
		       (int)EPF_GPI_ADD == (int)GPI_GFD_DATA_OP_AMO_ADD &&
		       (int)EPF_GPI_FLUSH == (int)GPI_GFD_DATA_OP_PE_FLUSH &&
		       EPF_GPI_SIGNAL_RESET == (GPI_GFD_OP_CTRL | GPI_GFD_CTRL_OP_SIGNAL_RESET),
	       "operations of kernels");
WHOLE(epf_nccl_rma_config_v14, ncclRmaConfig_v14_t);
SAME(epf_nccl_rma_config_v14, contexts, ncclRmaConfig_v14_t, nContexts);
#endif
