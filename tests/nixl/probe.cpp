/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A back end that moves no data: it writes down what an agent passes to it as tools/nixl/nixl_abi.h reads it, one line a call, into the file that
 * the parameter "log" names. test_abi.py compares the lines with what it asked of the agent.
 */
#include "tools/nixl/nixl_abi.h"

#include <cstdio>

namespace
{

struct Range final : nixlBackendMD {
	explicit Range(bool is_private) : nixlBackendMD(is_private)
	{
	}
};

struct Request final : nixlBackendReqH {
};

class Probe final : public nixlBackendEngine
{
      public:
	explicit Probe(const nixlBackendInitParams *p) : nixlBackendEngine(p)
	{
		const auto it = p->customParams->find("log");

		log = it == p->customParams->end() ? nullptr : fopen(it->second.c_str(), "w");
		initErr = !log || p->customParams->count("fail");
		if (log)
			fprintf(log, "init %s %s %zu %d %zu %d %d\n", p->localAgent.c_str(),
				p->type.c_str(), p->customParams->size(), p->enableProgTh,
				static_cast<size_t>(p->pthrDelay), static_cast<int>(p->syncMode),
				p->enableTelemetry_);
	}

	~Probe() override
	{
		if (log) {
			fprintf(log, "destroyed\n");
			fclose(log);
		}
	}

	bool supportsRemote() const override
	{
		return true;
	}

	bool supportsLocal() const override
	{
		return false;
	}

	bool supportsNotif() const override
	{
		return true;
	}

	nixl_mem_list_t getSupportedMems() const override
	{
		return { VRAM_SEG, DRAM_SEG };
	}

	nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &kind,
				  nixlBackendMD *&out) override
	{
		line("register", "%d %zx %zu %zu %s", kind, static_cast<size_t>(mem.addr), mem.len,
		     static_cast<size_t>(mem.devId), mem.metaInfo.c_str());
		out = new Range(true);
		return NIXL_SUCCESS;
	}

	nixl_status_t deregisterMem(nixlBackendMD *meta) override
	{
		line("deregister", "");
		delete meta;
		return NIXL_SUCCESS;
	}

	nixl_status_t connect(const std::string &agent) override
	{
		line("connect", "%s", agent.c_str());
		return NIXL_SUCCESS;
	}

	nixl_status_t disconnect(const std::string &agent) override
	{
		line("disconnect", "%s", agent.c_str());
		return NIXL_SUCCESS;
	}

	nixl_status_t unloadMD(nixlBackendMD *meta) override
	{
		line("unload", "");
		delete meta;
		return NIXL_SUCCESS;
	}

	nixl_status_t prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote, const std::string &agent,
			       nixlBackendReqH *&handle,
			       const nixl_opt_b_args_t *args) const override
	{
		transfer("prepare", op, local, remote, agent, args);
		handle = new Request;
		return NIXL_SUCCESS;
	}

	nixl_status_t postXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote, const std::string &agent,
			       nixlBackendReqH *&, const nixl_opt_b_args_t *args) const override
	{
		transfer("post", op, local, remote, agent, args);
		return NIXL_IN_PROG;
	}

	nixl_status_t checkXfer(nixlBackendReqH *) const override
	{
		line("check", "");
		return NIXL_SUCCESS;
	}

	nixl_status_t releaseReqH(nixlBackendReqH *handle) const override
	{
		line("release", "");
		delete handle;
		return NIXL_SUCCESS;
	}

	nixl_status_t getPublicData(const nixlBackendMD *, std::string &str) const override
	{
		str = "public of " + localAgent;
		return NIXL_SUCCESS;
	}

	nixl_status_t getConnInfo(std::string &str) const override
	{
		str = "connection of " + localAgent;
		return NIXL_SUCCESS;
	}

	nixl_status_t loadRemoteConnInfo(const std::string &agent, const std::string &info) override
	{
		line("load-connection", "%s: %s", agent.c_str(), info.c_str());
		return NIXL_SUCCESS;
	}

	nixl_status_t loadRemoteMD(const nixlBlobDesc &mem, const nixl_mem_t &kind,
				   const std::string &agent, nixlBackendMD *&out) override
	{
		line("load", "%s: %d %zx %zu %zu %s", agent.c_str(), kind,
		     static_cast<size_t>(mem.addr), mem.len, static_cast<size_t>(mem.devId),
		     mem.metaInfo.c_str());
		out = new Range(false);
		return NIXL_SUCCESS;
	}

	nixl_status_t getNotifs(notif_list_t &list) override
	{
		list.emplace_back("somebody", "a message");
		return NIXL_SUCCESS;
	}

	nixl_status_t genNotif(const std::string &agent, const std::string &message) const override
	{
		line("notify", "%s: %s", agent.c_str(), message.c_str());
		return NIXL_SUCCESS;
	}

      private:
	template <class... Args> void line(const char *call, const char *form, Args... args) const
	{
		fprintf(log, "%s ", call);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
		fprintf(log, form, args...);
#pragma GCC diagnostic pop
		fprintf(log, "\n");
		fflush(log);
	}

	void transfer(const char *call, nixl_xfer_op_t op, const nixl_meta_dlist_t &local,
		      const nixl_meta_dlist_t &remote, const std::string &agent,
		      const nixl_opt_b_args_t *args) const
	{
		const int last = local.descCount() - 1;

		line(call, "%d %s %d %d %d %zx %zu %zx %zu %d %s", op, agent.c_str(),
		     local.descCount(), local.getType(), remote.getType(),
		     static_cast<size_t>(local[last].addr), local[last].len,
		     static_cast<size_t>(remote[last].addr),
		     static_cast<size_t>(remote[last].devId), args->hasNotif,
		     args->notifMsg.c_str());
		/* What registerMem and loadRemoteMD returned must come back. */
		if (!dynamic_cast<Range *>(local[last].metadataP) ||
		    !dynamic_cast<Range *>(remote[last].metadataP))
			line("foreign", "metadata");
	}

	FILE *log;
};

} /* namespace */

extern "C" __attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init()
{
	static nixlBackendPlugin plugin = {
		NIXL_PLUGIN_API_VERSION,
		[](const nixlBackendInitParams *params) -> nixlBackendEngine * {
			return new Probe(params);
		},
		[](nixlBackendEngine *engine) { delete engine; },
		[] { return "PROBE"; },
		[] { return "1"; },
		[] {
			return nixl_b_params_t{ { "log", "" } };
		},
		[] {
			return nixl_mem_list_t{ VRAM_SEG, DRAM_SEG };
		},
	};

	return &plugin;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini()
{
}
