/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NIXL's agent (github.com/ai-dynamo/nixl) and a back end share in memory: the order of virtual functions, the fields that one
 * side writes and the other reads, and the values of enumerations. Plug-in interface 1, as in NIXL 1.3 to 1.5. Names follow NIXL's, so that
 * the back end compiles against NIXL's own headers as well (meson option nixl_source); what the binary interface does not need is
 * left out. tests/nixl verifies this file against the wheels: the virtual functions by the symbols of the wheel's UCX plug-in, the
 * fields by what an agent passes to the plug-in of tests/nixl/probe.cpp.
 */
#ifndef EPF_NIXL_ABI_H
#define EPF_NIXL_ABI_H

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#define NIXL_PLUGIN_API_VERSION 1

enum nixl_mem_t { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };

enum nixl_xfer_op_t { NIXL_READ, NIXL_WRITE };

enum nixl_status_t {
	NIXL_IN_PROG = 1,
	NIXL_SUCCESS = 0,
	NIXL_ERR_NOT_POSTED = -1,
	NIXL_ERR_INVALID_PARAM = -2,
	NIXL_ERR_BACKEND = -3,
	NIXL_ERR_NOT_FOUND = -4,
	NIXL_ERR_MISMATCH = -5,
	NIXL_ERR_NOT_ALLOWED = -6,
	NIXL_ERR_REPOST_ACTIVE = -7,
	NIXL_ERR_UNKNOWN = -8,
	NIXL_ERR_NOT_SUPPORTED = -9,
	NIXL_ERR_REMOTE_DISCONNECT = -10,
	NIXL_ERR_CANCELED = -11,
};
enum class nixl_thread_sync_t : int;
enum class nixl_cost_t : int;

using nixl_blob_t = std::string;
using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_query_resp_t = std::optional<nixl_b_params_t>;
using nixlMemViewH = void *;
using notif_list_t = std::vector<std::pair<std::string, std::string>>; /* agent, message */

/* A range of memory. devId is the GPU of VRAM_SEG. */
class nixlBasicDesc
{
      public:
	uintptr_t addr;
	size_t len;
	uint64_t devId;
};

/* A range to register, or one of a remote agent with the blob that its back end gave it. */
class nixlBlobDesc : public nixlBasicDesc
{
      public:
	nixl_blob_t metaInfo;
};

/* What a back end keeps of a registered range, or of a remote one. */
class nixlBackendMD
{
      protected:
	bool isPrivateMD;

      public:
	explicit nixlBackendMD(bool is_private) : isPrivateMD(is_private)
	{
	}

	virtual ~nixlBackendMD() = default;
};

/* A range of a transfer, with what the back end keeps of the registered range around it. */
class nixlMetaDesc : public nixlBasicDesc
{
      public:
	nixlBackendMD *metadataP;
};

struct nixlRemoteMetaDesc : public nixlMetaDesc {
	std::string remoteAgent;
};

/* A list that the agent has made; a back end only reads it. */
template <class T> class nixlDescList
{
      protected:
	nixl_mem_t type;
	std::vector<T> descs;

      public:
	virtual ~nixlDescList() = default;

	nixl_mem_t getType() const
	{
		return type;
	}

	int descCount() const
	{
		return static_cast<int>(descs.size());
	}

	const T &operator[](size_t index) const
	{
		return descs[index];
	}
};

using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;
using nixl_remote_meta_dlist_t = nixlDescList<nixlRemoteMetaDesc>;
using nixl_reg_dlist_t = nixlDescList<nixlBlobDesc>;

/* What a user asks for when posting. */
struct nixlBackendOptionalArgs {
	nixl_blob_t notifMsg;
	bool hasNotif;
	nixl_blob_t customParam;
};

using nixl_opt_b_args_t = nixlBackendOptionalArgs;
struct nixlAgentOptionalArgs;
using nixl_opt_args_t = nixlAgentOptionalArgs;

/* What a back end is created with. customParams belongs to the caller. */
class nixlBackendInitParams
{
      public:
	std::string localAgent;
	std::string type;
	nixl_b_params_t *customParams;
	bool enableProgTh;
	uint64_t pthrDelay;
	nixl_thread_sync_t syncMode;
	bool enableTelemetry_;
};

/* A prepared transfer of a back end. */
class nixlBackendReqH
{
      public:
	virtual ~nixlBackendReqH() = default;
};

/* Counters that a back end may report; ours reports none. */
struct nixlTelemetryEvent {
	uint32_t eventType_;
	uint64_t value_;
};

/* The agent reads the fields by functions inlined into it: their order is part of the interface, as is that of the virtual functions. */
class nixlBackendEngine
{
      private:
	std::string backendType;
	nixl_b_params_t customParams;
	std::vector<nixlTelemetryEvent> telemetryEvents_;
	std::mutex telemetryEventsMutex_;

      protected:
	bool initErr =
		false; /* set by a constructor that failed: the agent then refuses the back end */
	const std::string localAgent;
	const bool enableTelemetry_;

      public:
	explicit nixlBackendEngine(const nixlBackendInitParams *params)
	    : backendType(params->type), customParams(*params->customParams),
	      localAgent(params->localAgent), enableTelemetry_(params->enableTelemetry_)
	{
	}

	nixlBackendEngine(const nixlBackendEngine &) = delete;
	void operator=(const nixlBackendEngine &) = delete;

	virtual ~nixlBackendEngine() = default;
	virtual bool supportsRemote() const = 0;
	virtual bool supportsLocal() const = 0;
	virtual bool supportsNotif() const = 0;
	virtual nixl_mem_list_t getSupportedMems() const = 0;
	virtual nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &nixl_mem,
					  nixlBackendMD *&out) = 0;
	virtual nixl_status_t deregisterMem(nixlBackendMD *meta) = 0;
	virtual nixl_status_t connect(const std::string &remote_agent) = 0;
	virtual nixl_status_t disconnect(const std::string &remote_agent) = 0;
	virtual nixl_status_t unloadMD(nixlBackendMD *input) = 0;
	virtual nixl_status_t prepXfer(const nixl_xfer_op_t &operation,
				       const nixl_meta_dlist_t &local,
				       const nixl_meta_dlist_t &remote,
				       const std::string &remote_agent, nixlBackendReqH *&handle,
				       const nixl_opt_b_args_t *opt_args) const = 0;
	virtual nixl_status_t postXfer(const nixl_xfer_op_t &operation,
				       const nixl_meta_dlist_t &local,
				       const nixl_meta_dlist_t &remote,
				       const std::string &remote_agent, nixlBackendReqH *&handle,
				       const nixl_opt_b_args_t *opt_args) const = 0;
	virtual nixl_status_t checkXfer(nixlBackendReqH *handle) const = 0;
	virtual nixl_status_t releaseReqH(nixlBackendReqH *handle) const = 0;

	virtual nixl_status_t prepMemView(const nixl_remote_meta_dlist_t &, nixlMemViewH &,
					  const nixl_opt_b_args_t *) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}

	virtual nixl_status_t prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &,
					  const nixl_opt_b_args_t *) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}

	virtual void releaseMemView(nixlMemViewH) const
	{
	}

	virtual nixl_status_t getPublicData(const nixlBackendMD *, std::string &) const
	{
		return NIXL_ERR_BACKEND;
	}

	virtual nixl_status_t getConnInfo(std::string &) const
	{
		return NIXL_ERR_BACKEND;
	}

	virtual nixl_status_t loadRemoteConnInfo(const std::string &, const std::string &)
	{
		return NIXL_ERR_BACKEND;
	}

	virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &, const nixl_mem_t &,
					   const std::string &, nixlBackendMD *&)
	{
		return NIXL_ERR_BACKEND;
	}

	virtual nixl_status_t loadLocalMD(nixlBackendMD *, nixlBackendMD *&)
	{
		return NIXL_ERR_BACKEND;
	}

	virtual nixl_status_t getNotifs(notif_list_t &)
	{
		return NIXL_ERR_BACKEND;
	}

	virtual nixl_status_t genNotif(const std::string &, const std::string &) const
	{
		return NIXL_ERR_BACKEND;
	}

	virtual nixl_status_t queryMem(const nixl_reg_dlist_t &,
				       std::vector<nixl_query_resp_t> &) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}

	virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
					       const nixl_meta_dlist_t &, const std::string &,
					       nixlBackendReqH *const &,
					       std::chrono::microseconds &,
					       std::chrono::microseconds &, nixl_cost_t &,
					       const nixl_opt_args_t *) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}
};

/* What nixl_plugin_init() returns; lives as long as the library. */
class nixlBackendPlugin
{
      public:
	int api_version;
	nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *params);
	void (*destroy_engine)(nixlBackendEngine *engine);
	const char *(*get_plugin_name)();
	const char *(*get_plugin_version)();
	nixl_b_params_t (*get_backend_options)();
	nixl_mem_list_t (*get_backend_mems)();
};

#endif
